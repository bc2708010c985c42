package server

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"
)

// TestDeepPipeline has clients send all of their commands before they read an
// answer, each in a write of its own, as redis-py's pipelines do: a unix socket
// takes some hundred answers that nobody reads, however short they are.
func TestDeepPipeline(t *testing.T) {
	const depth, size = 1000, 64 << 10
	r := newRig(t, 16<<20)
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			c, _ := r.raw(network)
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			value := bytes.Repeat([]byte("v"), size)
			for i := range depth {
				if _, err := fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$4\r\nk%03d\r\n$%d\r\n%s\r\n", i%100, size, value); err != nil {
					t.Fatalf("command %d: %v", i, err)
				}
				time.Sleep(100 * time.Microsecond) // so that each is answered by itself
			}
			if _, err := io.WriteString(c, "ECHO last\r\nQUIT\r\n"); err != nil {
				t.Fatal(err)
			}
			want := append(bytes.Repeat([]byte("+OK\r\n"), depth), "$4\r\nlast\r\n+OK\r\n"...)
			got, err := io.ReadAll(bufio.NewReader(c))
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes of answers, want %d: %v", len(got), len(want), err)
			}
		})
	}
}

// TestBacklogGoesOut has a client that has sent all of its commands, waits a while,
// and then reads: what was kept for it must come without another command.
func TestBacklogGoesOut(t *testing.T) {
	const depth = 3000
	r := newRig(t, 16<<20)
	c, _ := r.raw("unix")
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	filler := bytes.Repeat([]byte("v"), 16<<10)
	for i := range depth {
		if _, err := fmt.Fprintf(c, "*2\r\n$6\r\nSTRLEN\r\n$%d\r\n%s\r\n", len(filler), filler); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	got := make([]byte, len(":0\r\n")*depth)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte(":0\r\n"), depth)) {
		t.Fatalf("answers: %v", err)
	}
}
