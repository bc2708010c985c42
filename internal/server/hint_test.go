package server

import "testing"

// TestHint: hints are taken in from any client that may look, and bad ones refused.
func TestHint(t *testing.T) {
	r := newRig(t, 16<<20)
	c := r.client("tcp")
	for _, k := range []string{"a", "b"} {
		if err := c.Set(k, randomBytes(7, 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	for words, want := range map[[3]string]int64{{"SHARED", "1"}: 2, {"DUE", "30000"}: 2, {"due", "0"}: 2} {
		if got, err := c.Do("CASCADE.HINT", "redis/0", words[0], words[1], "KEYS", "a", "b", "absent"); err != nil || got.Int != want {
			t.Errorf("%v reaches %+v, %v, want %d", words, got, err, want)
		}
	}
	for _, bad := range [][]string{{"KEYS", "a", "b"}, {"DUE", "-1", "KEYS", "a"}, {"DUE", "x", "KEYS", "a"}, {"SHARED", "1", "KEYS"}, {"PIN", "1", "KEYS", "a"}} {
		if got, err := c.Do(append([]string{"CASCADE.HINT", "redis/0"}, bad...)...); err == nil {
			t.Errorf("%v is answered %+v", bad, got)
		}
	}
}
