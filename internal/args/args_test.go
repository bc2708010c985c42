package args

import (
	"testing"
	"time"

	"cascadekv/cascade"
)

func TestBlockTime(t *testing.T) {
	for word, want := range map[string]time.Duration{"0": 0, "1500": 1500 * time.Microsecond, "3600000000": time.Hour, "auto": cascade.Learned, "AUTO": cascade.Learned} {
		if d, ok := BlockTime([]byte(word)); !ok || d != want {
			t.Errorf("%q is %v, %v", word, d, ok)
		}
	}
	for _, bad := range []string{"", "-1", "3600000001", "1.5", "autos", "x"} {
		if d, ok := BlockTime([]byte(bad)); ok {
			t.Errorf("%q is %v", bad, d)
		}
	}
}
