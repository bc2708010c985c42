package server

import (
	"os"
	"testing"
	"time"

	"cascadekv/internal/resp"
)

// TestSocketComesBack removes the socket file: the server listens there again, those who were connected stay, and its end removes the
// file.
func TestSocketComesBack(t *testing.T) {
	r := newRig(t, 16<<20)
	before := r.client("unix")
	if err := before.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := os.Remove(r.sock); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a socket", func() bool {
			c, err := resp.Dial("unix", r.sock, time.Second)
			if err != nil {
				return false
			}
			defer c.Close()
			got := make([]byte, 1)
			n, err := c.Get("k", got)
			return err == nil && string(got[:n]) == "v"
		})
		if st, err := os.Stat(r.sock); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
	}
	if err := before.Set("k", []byte("w")); err != nil {
		t.Error(err)
	}
}
