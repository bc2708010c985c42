package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/cli"
)

// terminal is a pseudo-terminal: what is written to inside shows up outside.
func terminal(t *testing.T) (inside, outside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { outside.Close() })
	if err := unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	inside, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	return inside, outside
}

// TestProgressIsDrawn: who waits at a terminal sees that something goes on; what
// goes to a file has no bars in it.
func TestProgressIsDrawn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jsonl")
	for _, c := range []struct {
		what string
		args []string
	}{
		{"synth", []string{"trace", "synth", "-o", file, "--requests", "3000"}},
		{"reading the trace", []string{"trace", "info", "--trace", file}},
		{"replay", []string{"trace", "replay", "--trace", file, "--block-bytes", "1KiB", "--limit", "20", "--no-lustre"}},
		{"simulate", []string{"trace", "replay", "--trace", file, "--capacity", "0.1,0.2"}},
	} {
		if got := cascadeCommand("", nil, c.args...); got.status != cli.OK || got.err != "" {
			t.Errorf("%v: %+v", c.args, got)
		}
		inside, outside := terminal(t)
		var out bytes.Buffer
		a := &app{in: strings.NewReader(""), out: &out, err: inside, shmDir: shmDir}
		drawn := make(chan []byte, 1)
		go func() {
			p, _ := io.ReadAll(outside) // it ends with an error once nobody is inside
			drawn <- p
		}()
		if status := a.run(context.Background(), c.args); status != cli.OK {
			t.Errorf("%v ends with %d", c.args, status)
		}
		inside.Close()
		if p := <-drawn; !bytes.Contains(p, []byte(c.what)) || strings.Contains(out.String(), "\r") {
			t.Errorf("%v draws %q and writes %q", c.args, p, out.String())
		}
	}
}
