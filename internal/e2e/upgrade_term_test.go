package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestTermMeetsUpgrade tells a rank to end at all stages of an upgrade. The
// program that hears of it drains: what was acknowledged is in lustre. In its
// first milliseconds the new one can not listen yet and is ended by the signal:
// then everything is in the arena still.
func TestTermMeetsUpgrade(t *testing.T) {
	const blocks, size = 20, 100_000
	drained, cut := 0, 0
	for i := range 16 {
		p := newPlace(t, "64MiB").withLustre()
		r := start(t, p)
		key := func(k int) string { return fmt.Sprintf("%d-%d", i, k) }
		c := r.dial(t)
		for k := range blocks {
			if err := c.Set(key(k), bytesOf(key(k), size)); err != nil {
				t.Fatal(err)
			}
		}
		u := exec.Command(program("cascade"), "upgrade", "--socket", p.socket, "--wait", "5s")
		if err := u.Start(); err != nil {
			t.Fatal(err)
		}
		r.untilSays(t, "msg=upgrading")
		time.Sleep(time.Duration(i) * 3 * time.Millisecond)
		r.signal(t, syscall.SIGTERM)
		status := r.status(t)
		_ = u.Wait() // it was answered or not
		c.Close()
		if signalled(r) {
			cut++
		} else {
			drained++
			wantStatus(t, status, 0, r.stderr)
			p.wantNoArena(t)
		}
		after := start(t, p)
		c = after.dial(t)
		buf := make([]byte, size)
		for k := range blocks {
			if n, err := c.Get(key(k), buf); err != nil || !bytes.Equal(buf[:n], bytesOf(key(k), size)) {
				t.Errorf("%d ms into the upgrade: %s has %d bytes: %v", 3*i, key(k), n, err)
			}
		}
		c.Close()
		after.kill()
	}
	t.Logf("%d ranks drained, %d were cut short in the first milliseconds of the new program", drained, cut)
	if drained == 0 {
		t.Error("no rank drained")
	}
}

// signalled reports whether SIGTERM ended a program that did not listen to it.
func signalled(r *rank) bool {
	status, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}
