package tcp

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Frames of many callers arrive whole and once each, however full the stream.
func TestQueue(t *testing.T) {
	const callers, frames = 8, 60
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, there := connected(t, l)
	defer here.Close()
	defer there.Close()
	if err := here.(*net.TCPConn).SetWriteBuffer(128 << 10); err != nil {
		t.Fatal(err)
	}
	q := newQueue(here)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() {
		if err := q.run(ctx); err != nil {
			t.Error(err)
		}
	})
	atOnceSent := make([]int, callers)
	for c := range callers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 2))
			for i := range frames {
				id := uint64(c*frames + i + 1)
				frame := header{kind: kindAnswer, id: id}.frame(bytes.Repeat([]byte{byte(id)}, rng.IntN(80<<10)))
				if q.try(frame) {
					atOnceSent[c]++
				} else {
					q.frames <- frame
				}
			}
		})
	}
	seen := map[uint64]bool{}
	from := bufio.NewReader(there)
	for range callers * frames {
		if rand.IntN(20) == 0 {
			time.Sleep(time.Millisecond) // the stream fills
		}
		h, err := readHeader(from)
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, h.length)
		if _, err := io.ReadFull(from, body); err != nil {
			t.Fatal(err)
		}
		if seen[h.id] || bytes.Count(body, []byte{byte(h.id)}) != len(body) {
			t.Fatalf("frame %d came twice or is torn", h.id)
		}
		seen[h.id] = true
	}
	cancel()
	all.Wait()
	sum := 0
	for _, n := range atOnceSent {
		sum += n
	}
	if sum == 0 || sum == callers*frames {
		t.Errorf("%d of %d frames were sent at once: one of the ways was not tried", sum, callers*frames)
	}
}
