package stats

import (
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cascadekv/internal/testing/tracetest"
	"cascadekv/internal/trace"
)

// TestPublicTraces: the figures of the two Mooncake traces are those that the
// research on eviction found with other code.
func TestPublicTraces(t *testing.T) {
	for name, want := range map[string]struct {
		once, ideal float64
		ages        map[int64]float64 // by seconds
	}{
		"mooncake_conversation_trace.jsonl.gz": {0.758, 0.3664, map[int64]float64{10: 0.12, 60: 0.28, 120: 0.52, 300: 0.79}},
		"mooncake_synthetic_trace.jsonl.gz":    {0.58, 0.6396, map[int64]float64{10: 0.17, 60: 0.50, 300: 0.91}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := trace.Open(tracetest.Public(t, name), trace.ReaderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			s, err := Measure(r, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(s.OnceShare-want.once) > 0.005 || math.Abs(s.HitRatioBlocks-want.ideal) > 0.0001 {
				t.Errorf("%.4f of blocks are touched once, the ideal ratio is %.4f, want %.3f and %.4f", s.OnceShare, s.HitRatioBlocks, want.once, want.ideal)
			}
			for _, a := range s.AgeShares {
				if share, ok := want.ages[a.Seconds]; ok && math.Abs(a.Share-share) > 0.005 {
					t.Errorf("%.4f of reuses come within %d s, want %.2f", a.Share, a.Seconds, share)
				}
			}
			if s.Reuses != s.Blocks-s.UniqueBlocks || s.Distance.Max >= s.UniqueBlocks {
				t.Errorf("%+v", s)
			}
			t.Logf("distance %+v", s.Distance)
		})
	}
}

// TestStack holds distances to a slow search over the order of last touches.
func TestStack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s stack
	var slow []uint32 // latest last
	known := uint32(0)
	for i := range 30_000 {
		block := known
		if known > 0 && (rng.IntN(10) > 0 || known == 700) {
			block = rng.Uint32N(known)
		} else {
			known++
		}
		want := int64(cold)
		if at := slices.Index(slow, block); at >= 0 {
			want = int64(len(slow) - at - 1)
			slow = slices.Delete(slow, at, at+1)
		}
		slow = append(slow, block)
		if got := s.touch(block); got != want {
			t.Fatalf("touch %d, of block %d: distance %d, want %d", i, block, got, want)
		}
	}
	if limit := 2*len(slow) + 1024; len(s.tree) > limit {
		t.Errorf("%d slots for %d blocks, want at most %d", len(s.tree), len(slow), limit)
	}
}

func TestDistribution(t *testing.T) {
	var h histogram
	if d := h.distribution(); d.Max != 0 || d.Bins != nil {
		t.Errorf("of nothing: %+v", d)
	}
	sum := int64(0)
	for v := range int64(10_000) {
		h.add(v)
		sum += v
	}
	d := h.distribution()
	for _, c := range []struct{ got, want int64 }{{d.P10, 1000}, {d.P50, 5000}, {d.P90, 9000}, {d.P99, 9900}, {d.Max, 9999}} {
		if math.Abs(float64(c.got-c.want)) > 0.008*float64(c.want) {
			t.Errorf("percentile %d, want %d within 0.8 %%", c.got, c.want)
		}
	}
	if d.Mean != float64(sum)/10_000 {
		t.Errorf("mean %v", d.Mean)
	}
	low, total := int64(-1), int64(0)
	for _, b := range d.Bins {
		if want := min(b.Most, 9999) - low; b.Count != want {
			t.Errorf("bin from %d to %d has %d values, want %d", low+1, b.Most, b.Count, want)
		}
		low, total = b.Most, total+b.Count
	}
	if total != 10_000 {
		t.Errorf("bins have %d values", total)
	}
	for _, v := range []uint64{0, 1, 63, 64, 127, 128, 1 << 40, math.MaxInt64} {
		if i := bucket(v); uint64(lowest(i)) > v || i+1 < len(h.counts) && uint64(lowest(i+1)) <= v {
			t.Errorf("%d is in bucket %d, which begins at %d", v, i, lowest(i))
		}
	}
}

type list struct{ left []trace.Request }

func (l *list) Next(req *trace.Request) error {
	if len(l.left) == 0 {
		return io.EOF
	}
	*req, l.left = l.left[0], l.left[1:]
	return nil
}

// TestMeasure goes through a small trace by hand: two sessions, a gap without
// requests, and a time that goes back.
func TestMeasure(t *testing.T) {
	all := []trace.Request{
		{Timestamp: 1000, InputTokens: 1536, Hashes: []uint64{1, 2, 3}, Session: "a", Group: "g"},
		{Timestamp: 4000, InputTokens: 1024, Hashes: []uint64{1, 4}, Session: "b", Group: "g"}, // 1 again after 2, 3
		{Timestamp: 62_000, InputTokens: 1024, Hashes: []uint64{1, 4}, Session: "a"},           // 1 after 4, 4 after 1
		{Timestamp: 41_000, InputTokens: 512, Hashes: []uint64{4}},                             // at once: time does not go back
		{Timestamp: 63_000, InputTokens: 512, Hashes: []uint64{4}},                             // a second after 62 s
	}
	s, err := Measure(&list{all}, Options{Window: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if s.Requests != 5 || s.Blocks != 9 || s.UniqueBlocks != 4 || s.DedupRatio != 2.25 || s.Once != 2 || s.OnceShare != 0.5 || s.Reuses != 5 {
		t.Errorf("%+v", s)
	}
	if s.Distance.Max != 2 || s.Distance.Mean != 0.8 || s.Age.Max != 58_000 || s.AgeShares[0].Share != 0.4 || s.AgeShares[1].Share != 0.6 || s.AgeShares[2].Share != 1 {
		t.Errorf("distance %+v, age %+v, %+v", s.Distance, s.Age, s.AgeShares)
	}
	if want := []Window{{0, 2, 4, 4}, {60, 3, 2, 0}}; !slices.Equal(s.Windows, want) || s.WindowSeconds != 10 {
		t.Errorf("windows %+v, want %+v", s.Windows, want)
	}
	if s.Sessions == nil || s.Sessions.Count != 2 || s.Sessions.Groups != 1 || s.Sessions.Requests != 3 || s.Sessions.Turns.Max != 2 || s.Sessions.GapMS.Max != 61_000 {
		t.Errorf("sessions %+v", s.Sessions)
	}
	if s, err := Measure(&list{all}, Options{Limit: 1}); err != nil || s.Requests != 1 || s.Reuses != 0 {
		t.Errorf("one request: %+v, %v", s, err)
	}
	if s, err := Measure(&list{}, Options{}); err != nil || s.Requests != 0 || s.Sessions != nil || len(s.Windows) != 0 {
		t.Errorf("nothing: %+v, %v", s, err)
	}
	if _, err := Measure(&list{}, Options{Window: 1}); err == nil {
		t.Error("a window of a nanosecond was accepted")
	}
}

func BenchmarkMeasure(b *testing.B) {
	r, err := trace.Open(tracetest.Public(b, "mooncake_conversation_trace.jsonl.gz"), trace.ReaderOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	var all []trace.Request
	for {
		var req trace.Request
		if r.Next(&req) != nil {
			break
		}
		all = append(all, req)
	}
	touches := int64(0)
	for b.Loop() {
		s, err := Measure(&list{all}, Options{})
		if err != nil {
			b.Fatal(err)
		}
		touches += s.Blocks
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(touches), "ns/touch")
}
