package replay

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestKeys(t *testing.T) {
	got := appendKeys(nil, []uint64{0, 0xabc, math.MaxUint64})
	want := []string{"0000000000000000", "0000000000000abc", "ffffffffffffffff"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Every bucket begins where the one before it ends, and its middle lies in it.
func TestHistogramBuckets(t *testing.T) {
	for v := uint64(0); v < 1<<16; v++ {
		if b := bucket(v); v > 0 && b != bucket(v-1) && b != bucket(v-1)+1 {
			t.Fatalf("bucket %d follows %d at %d", b, bucket(v-1), v)
		}
		if m := uint64(middle(bucket(v))); bucket(m) != bucket(v) || m > v+v/16 || m+v/16 < v {
			t.Fatalf("the middle of %d's bucket is %d", v, m)
		}
	}
	var h histogram
	if b := bucket(math.MaxUint64); b >= len(h.counts) {
		t.Fatalf("the last bucket is %d of %d", b, len(h.counts))
	}
	h.add(math.MaxInt64)
	h.add(-5)
	if h.n != 2 || h.counts[0] != 1 {
		t.Errorf("extremes are not counted")
	}
}

func TestHistogramQuantiles(t *testing.T) {
	var a, b histogram
	for i := 1; i <= 1000; i++ {
		if i%2 == 0 {
			a.add(time.Duration(i) * time.Microsecond)
		} else {
			b.add(time.Duration(i) * time.Microsecond)
		}
	}
	a.merge(&b)
	for q, want := range map[float64]float64{0: 1, 0.5: 500, 0.99: 990, 1: 1000} {
		if got := float64(a.quantile(q)) / 1e3; math.Abs(got-want) > 0.04*want {
			t.Errorf("quantile %v is %v µs, want %v within 4 %%", q, got, want)
		}
	}
	if l := a.latency(); l.Max != 1000 || math.Abs(l.Mean-500.5) > 1e-9 || l.Count != 1000 || !slices.IsSorted(l.Curve) {
		t.Errorf("got %+v", l)
	}
	if l := new(histogram).latency(); l.P99 != 0 || l.Curve != nil {
		t.Errorf("an empty histogram tells %+v", l)
	}
}

func TestHistogramDoesNotAllocate(t *testing.T) {
	var h histogram
	if n := testing.AllocsPerRun(100, func() { h.add(12345) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// However long the trace, the series is short and adds up.
func TestSeriesIsBounded(t *testing.T) {
	for _, n := range []int{1, 119, 120, 121, 5000} {
		sum := newTotals("p", nil)
		for i := range n {
			sum.add(&outcome{blocks: 3, tiers: []tierHits{{[]string{"a", "b"}[i%2], 2, 20}}})
		}
		r := sum.result(1, 10)
		var blocks, hits int64
		at := 0
		for _, p := range r.Series {
			if p.Requests <= at {
				t.Fatalf("%d requests: a stretch ends at %d after %d", n, p.Requests, at)
			}
			at = p.Requests
			blocks += p.Blocks
			hits += p.Hits["a"] + p.Hits["b"]
		}
		if len(r.Series) > maxPoints || at != n || blocks != int64(3*n) || hits != int64(2*n) {
			t.Errorf("%d requests: %d points to %d with %d blocks, %d hits", n, len(r.Series), at, blocks, hits)
		}
	}
}

// sample makes results as of a replay with three policies.
func sample() []Result {
	var results []Result
	for i, policy := range []string{"prefix", "lru", "paper"} {
		sum := newTotals(policy, nil)
		for n := range 12031 {
			wave := math.Sin(float64(n)/900) + 1
			o := outcome{blocks: 24, tokens: 12000, put: 15, probed: time.Duration(3000+n%7000*(i+1)) * time.Nanosecond,
				got: time.Duration(50+n%991*(i+2)) * time.Microsecond, putting: time.Duration(900+n%1237*3) * time.Microsecond}
			for range 3 + int(3*wave) - i {
				o.hit("shm", 65536)
			}
			for range n / 3000 {
				o.hit("lustre", 65536)
			}
			o.hitTokens = o.hits * 512
			sum.add(&o)
		}
		r := sum.result(1, 65536)
		r.Trace, r.Seconds, r.UniqueBlocks, r.UnlimitedHitRatio = "mooncake_conversation_trace.jsonl.gz", 41.2+float64(i), 182790, 0.3664
		r.DedupRatio = ratio(r.Blocks, r.UniqueBlocks)
		r.describe(TargetStats{Policy: policy, Tiers: []string{"shm", "lustre"}, CapacityBytes: 18279 * 65536, BytesReferenced: 182790 * 65536, BytesStored: 182790 * 65536})
		results = append(results, r)
	}
	return results
}

func TestResultJSON(t *testing.T) {
	text, err := json.Marshal(sample()[0])
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"requests", "blocks", "unique_blocks", "hit_blocks", "hit_ratio_blocks", "hit_ratio_tokens", "dedup_ratio",
		"wrong_bytes", "tiers", "policy", "capacity_bytes", "block_bytes", "seconds", "gbps", "probe_us", "get_us", "put_us"} {
		if _, ok := got[name]; !ok {
			t.Errorf("field %q is missing", name)
		}
	}
	shm, ok := got["tiers"].(map[string]any)["shm"].(map[string]any)
	if !ok || shm["hits"] == nil || shm["hit_ratio"] == nil || shm["bytes"] == nil {
		t.Errorf("tier shm is %v", shm)
	}
	if p, ok := got["probe_us"].(map[string]any); !ok || p["p50"] == nil || p["p99"] == nil {
		t.Errorf("probe_us is %v", p)
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	if err := Table(&out, sample()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`policy +prefix +lru +paper`, `requests +12 031 `, `unlimited +36\.64 %`, `from shm `, `from lustre `, `wrong bytes +0 `,
		`block +64 KiB`, `capacity +1\.1 GiB`, `probe p50 / p99 `} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		count(0): "0", count(999): "999", count(1234567): "1 234 567", count(-1234): "-1 234",
		size(512): "512 B", size(1536): "1.5 KiB", size(1 << 31): "2 GiB", size(0): "",
		micros(0.25): "250 ns", micros(2.5): "2.5 µs", micros(999): "999 µs", micros(12345): "12.3 ms", micros(2e6): "2.00 s",
		decade(0): "1 µs", decade(-1): "100 ns", decade(4): "10 ms", decade(6): "1 s",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestReportStandsAlone(t *testing.T) {
	hostile := sample()
	hostile[0].Trace = `<script>alert("x")</script>`
	hostile[1].Policy = `"><img src=x>`
	hostile[2].WrongBytes = 17
	for name, c := range map[string]struct {
		results []Result
		want    []string
	}{
		"three policies": {sample(), []string{"Hits by tier", "12 031 requests", "requests 1 to ", "unlimited capacity: 36.64 %", "lru: p50 "}},
		"hostile words":  {hostile, []string{"&lt;script&gt;", "wrong bytes. No other figure", `class="bad">17`}},
		"same policy":    {append(sample()[:1], sample()[0]), []string{"prefix #1", "prefix #2"}},
		"nothing":        {nil, []string{"Replay of"}},
		"empty result":   {[]Result{{}}, []string{"Replay of"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := Report(&out, c.results); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in the page", want)
				}
			}
			for _, bad := range []string{"<script", "<img", "http:", "https:", "url(", "@import", "ZgotmplZ", "NaN", "Inf", "e-0", "e+0"} {
				if strings.Contains(out.String(), bad) {
					t.Errorf("%q is in the page", bad)
				}
			}
			checkSVG(t, out.String())
		})
	}
}

// checkSVG holds every drawing to being well-formed and within its frame.
func checkSVG(t *testing.T, page string) {
	t.Helper()
	for _, svg := range regexp.MustCompile(`(?s)<svg .*?</svg>`).FindAllString(page, -1) {
		var w, h float64
		for d := xml.NewDecoder(strings.NewReader(svg)); ; {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("drawing is not well-formed: %v", err)
			}
			e, ok := token.(xml.StartElement)
			if !ok {
				continue
			}
			for _, a := range e.Attr {
				if a.Name.Local == "viewBox" {
					if _, err := fmt.Sscanf(a.Value, "0 0 %g %g", &w, &h); err != nil {
						t.Fatal(err)
					}
				}
				limit := map[string]float64{"x": w, "x1": w, "x2": w, "width": w, "y": h, "y1": h, "y2": h, "height": h}[a.Name.Local]
				var v float64
				if limit > 0 {
					if _, err := fmt.Sscan(a.Value, &v); err != nil || v < 0 || v > limit {
						t.Errorf("%s of a %s is %s, want 0 to %v", a.Name.Local, e.Name.Local, a.Value, limit)
					}
				}
			}
		}
	}
}

func TestWriteErrorsAreTold(t *testing.T) {
	for name, write := range map[string]func(io.Writer, []Result) error{"table": Table, "report": Report} {
		if err := write(full{}, sample()); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: got %v, want os.ErrClosed", name, err)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.most = max(h.most, o.most)
}
