package netio

import "testing"

func TestConnectionThreads(t *testing.T) {
	if n := connectionThreads(); n < 8 || n > maxThreads {
		t.Errorf("%d threads", n)
	}
}
