package traces

import "testing"

func TestShareOfBlocks(t *testing.T) {
	for in, want := range map[string]float64{"0.1": 0.1, "10%": 0.1, "1": 1, "0": 0, "-1": 0, "x": 0, "nan": 0, "inf": 0} {
		if got, err := parseShare(in); got != want || (err == nil) != (want > 0) {
			t.Errorf("parseShare(%q) = %v, %v", in, got, err)
		}
	}
}

func TestRateFile(t *testing.T) {
	for name, want := range map[string]string{"a/t.jsonl.gz": "a/t-rps0.5.jsonl.gz", "t": "t-rps0.5", "a.b/t": "a.b/t-rps0.5", ".t": ".t-rps0.5"} {
		if got := rateFile(name, 0.5); got != want {
			t.Errorf("%s becomes %s, want %s", name, got, want)
		}
	}
}
