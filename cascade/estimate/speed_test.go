package estimate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// level is a level of a known speed, which takes up to an eighth more or less than that.
type level struct {
	Line
	*Speed
	now time.Duration
	r   *rand.Rand
}

func newLevel(l Line, assumed Line) *level {
	return &level{Line: l, Speed: NewSpeed(assumed), r: rand.New(rand.NewPCG(1, 2))}
}

func (l *level) load(bytes int64) {
	it := l.Begin(l.now, bytes)
	l.now += time.Duration(float64(l.Line.Time(bytes)) * (7.0/8 + l.r.Float64()/4))
	l.End(l.now, it, true)
}

// off is by what part an estimate is wrong.
func (l *level) off(bytes int64) float64 {
	got, want := l.Speed.Line(l.now).Time(bytes), l.Line.Time(bytes)
	return math.Abs(float64(got)/float64(want) - 1)
}

// TestHalvedSpeed: of a level that halves its speed after some of 1,000 loads the estimate is right
// again 50 loads later, within 20 %, whatever sizes the loads have.
func TestHalvedSpeed(t *testing.T) {
	for name, size := range map[string]func(*rand.Rand) int64{
		"one size":   func(*rand.Rand) int64 { return 4 << 20 },
		"all sizes":  func(r *rand.Rand) int64 { return 4096 << r.IntN(13) },
		"two sizes":  func(r *rand.Rand) int64 { return 64 << 10 << (8 * r.IntN(2)) },
		"small ones": func(r *rand.Rand) int64 { return 4096 + r.Int64N(4096) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLevel(Line{Latency: 300 * time.Microsecond, PerByte: 0.5}, Line{Latency: time.Millisecond, PerByte: 1})
			wrong := 0
			for i := range 1000 {
				if i == 500 {
					l.Latency, l.PerByte = 2*l.Latency, 2*l.PerByte
				}
				bytes := size(l.r)
				if (i >= 50 && i < 500 || i >= 550) && l.off(bytes) > .2 {
					wrong++
				}
				l.load(bytes)
			}
			if wrong > 0 {
				t.Errorf("%d estimates are wrong by more than 20 %%", wrong)
			}
		})
	}
}

// TestTellsLatencyFromBandwidth: loads of different sizes give both.
func TestTellsLatencyFromBandwidth(t *testing.T) {
	l := newLevel(Line{Latency: 2 * time.Millisecond, PerByte: 0.25}, Line{Latency: 100 * time.Microsecond, PerByte: 1})
	for range 200 {
		l.load(4096 << l.r.IntN(14))
	}
	got := l.Speed.Line(l.now)
	if math.Abs(float64(got.Latency)/2e6-1) > .2 || math.Abs(got.PerByte/.25-1) > .2 {
		t.Errorf("%+v, want %+v", got, l.Line)
	}
}

// TestWhatWaits: a load waits for what began before it, and one that has ended is waited for no
// longer, whether it came to something or not.
func TestWhatWaits(t *testing.T) {
	s := NewSpeed(Line{Latency: time.Millisecond, PerByte: 1})
	alone := s.Line(0).Time(1 << 20)
	a, b := s.Begin(0, 4<<20), s.Begin(0, 2<<20)
	if l := s.Line(0); l.Queued != 6<<20 || l.Time(1<<20) != alone+time.Duration(6<<20) {
		t.Errorf("%+v", l)
	}
	s.End(time.Millisecond, a, false)
	s.End(time.Millisecond, b, false)
	if l := s.Line(time.Millisecond); l.Queued != 0 || l.Time(1<<20) != alone {
		t.Errorf("after failures %+v", l)
	}
}

// TestOneHang: one load that hung changes little, a level that hangs is soon known to.
func TestOneHang(t *testing.T) {
	l := newLevel(Line{Latency: time.Millisecond, PerByte: 1}, Line{Latency: time.Millisecond, PerByte: 1})
	for range 100 {
		l.load(1 << 20)
	}
	it := l.Begin(l.now, 1<<20)
	l.End(l.now+3*time.Second, it, true)
	if off := l.off(1 << 20); off > .5 {
		t.Errorf("after one hang it is wrong by %.2f", off)
	}
	l.Latency = 3 * time.Second
	for range 10 {
		l.load(1 << 20)
	}
	if got := l.Speed.Line(l.now).Time(1 << 20); got < 20*2*time.Millisecond {
		t.Errorf("a level that hangs is expected to take %v", got)
	}
}

// TestForgets: what is assumed counts again once nothing was loaded for some minutes.
func TestForgets(t *testing.T) {
	assumed := Line{Latency: time.Millisecond, PerByte: 1}
	l := newLevel(Line{Latency: time.Second, PerByte: 100}, assumed)
	for range 100 {
		l.load(1 << 20)
	}
	if got := l.Speed.Line(l.now + 30*time.Second).Time(1 << 20); got < 500*time.Millisecond {
		t.Errorf("half a minute later it is %v", got)
	}
	if got := l.Speed.Line(l.now + 10*time.Minute).Time(1 << 20); got > 2*assumed.Time(1<<20) {
		t.Errorf("ten minutes later still %v", got)
	}
}

// TestCrossover: the example of the vLLM chapter ("The economics"): recomputing takes 8 us a token,
// loading 300 us and 5 us a token. From 100 tokens on loading is as fast.
func TestCrossover(t *testing.T) {
	const token = 1000 // bytes
	lines := []Line{{}, {Latency: 300 * time.Microsecond, PerByte: 5}}
	for _, tokens := range []int{1, 16, 99, 100, 101, 1000} {
		runs := []Run{{Level: 1, Blocks: tokens, Bytes: int64(tokens * token)}}
		blocks, load := Best(runs, lines, 8*time.Microsecond)
		want := 0
		if tokens >= 100 {
			want = tokens
		}
		if blocks != want || want > 0 && load != 300*time.Microsecond+time.Duration(5*tokens)*time.Microsecond {
			t.Errorf("%d tokens: load %d in %v, want %d", tokens, blocks, load, want)
		}
	}
}

// TestBest compares with all ways to cut a chain.
func TestBest(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		lines := make([]Line, 4)
		for i := range lines {
			lines[i] = Line{Latency: time.Duration(r.IntN(1000)) * time.Microsecond, PerByte: r.Float64(), Queued: int64(r.IntN(1 << 20))}
		}
		runs := make([]Run, r.IntN(6))
		for i := range runs {
			n := 1 + r.IntN(20)
			runs[i] = Run{Level: r.IntN(len(lines)), Blocks: n, Bytes: int64(n) * 64 << 10}
		}
		per := time.Duration(r.IntN(200)) * time.Microsecond
		blocks, load := Best(runs, lines, per)
		rest := func(n int) (k int) {
			for _, run := range runs {
				k += run.Blocks
			}
			return k - n
		}
		got := load + time.Duration(rest(blocks))*per
		for cut := 0; cut <= len(runs); cut++ {
			n := 0
			for _, run := range runs[:cut] {
				n += run.Blocks
			}
			took := time.Duration(0)
			if times := Times(runs[:cut], lines); cut > 0 {
				took = times[cut-1]
			}
			if whole := took + time.Duration(rest(n))*per; whole < got {
				t.Fatalf("loading %d takes %v, %d %v: %s", blocks, got, n, whole, fmt.Sprint(runs))
			}
		}
	}
}
