package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/dht/fabric"
	"cascadekv/internal/arena"
	"cascadekv/internal/testing/fabrictest"
)

// answered is the first answer in b to a read of size bytes, and what follows it. broken:
// it is none, or not whole.
func answered(b []byte, size int) (payload, rest []byte, err error, broken bool) {
	if len(b) < headerSize {
		return nil, nil, nil, true
	}
	h, derr := decode((*[headerSize]byte)(b))
	b = b[headerSize:]
	switch {
	case derr != nil:
	case h.kind == kindPayload && h.number == uint64(size) && len(b) >= size:
		return b[:size], b[size:], nil, false
	case h.kind == kindStale:
		return nil, b, fabric.ErrStale, false
	case h.kind == kindFailure && len(b) >= h.length:
		return nil, b[h.length:], &fabric.RemoteError{Text: string(b[:h.length])}, false
	}
	return nil, nil, nil, true
}

// Whatever a peer answers to a batch, in whatever pieces, each block is what stands in
// its own answer, and nothing is written beside the blocks.
func FuzzBatch(f *testing.F) {
	memory, err := arena.MapAnonymous(1 << 20)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { memory.Close() })
	payload := func(n int) []byte {
		return append(header{kind: kindPayload, number: uint64(n)}.frame(nil), bytes.Repeat([]byte{byte(n)}, n)...)
	}
	stale := header{kind: kindStale}.frame(nil)
	failure := header{kind: kindFailure}.frame([]byte("no"))
	f.Add([]byte{3, 0, 200, 1}, []byte{0}, bytes.Join([][]byte{payload(3), payload(0), payload(200), payload(1)}, nil))
	f.Add([]byte{3, 100, 200}, []byte{255}, bytes.Join([][]byte{stale, payload(100), stale}, nil))
	f.Add([]byte{200, 7, 7, 200, 9}, []byte{0}, bytes.Join([][]byte{failure, stale, payload(7), failure, payload(9)}, nil))
	f.Add([]byte{7, 7}, []byte{30, 2}, bytes.Join([][]byte{payload(7), stale, stale}, nil))
	f.Add([]byte{200}, []byte{10}, payload(100))
	f.Fuzz(func(t *testing.T, sizes, cuts, stream []byte) {
		if len(sizes) == 0 || len(sizes) > fabric.MaxBatch || len(stream) > 64<<10 {
			return
		}
		const gap = 8
		room := memory.Bytes()
		for i := range room[:len(sizes)*(256+gap)] {
			room[i] = 0xA5
		}
		reads := make([]fabric.Read, len(sizes))
		for i, n := range sizes {
			reads[i] = fabric.Read{Source: fabric.Source{Length: int64(n)}, Dst: room[i*(256+gap):][:n]}
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		w := &wire{fd: fds[0]}
		go func() {
			defer unix.Close(fds[1])
			ask := make([]byte, len(sizes)*frameSize)
			for n := 0; n < len(ask); {
				k, err := unix.Read(fds[1], ask[n:])
				if err != nil || k == 0 {
					return
				}
				n += k
			}
			for b := stream; len(b) > 0; { // cut into pieces, over and over
				n := len(b)
				if len(cuts) > 0 {
					n, cuts = min(n, 1+int(cuts[0])), append(cuts[1:len(cuts):len(cuts)], cuts[0])
				}
				if _, err := unix.SendmsgN(fds[1], b[:n], nil, nil, unix.MSG_NOSIGNAL); err != nil {
					return
				}
				b = b[n:]
			}
		}()
		done, err := w.read(reads, 1)
		w.close()
		if (err == nil) != (done == len(reads)) || w.aside.memory != nil {
			t.Fatalf("%d of %d answered, error %v, put aside %v", done, len(reads), err, w.aside.memory != nil)
		}
		left := stream
		for i := range reads[:done] {
			want, rest, fail, broken := answered(left, len(reads[i].Dst))
			if broken {
				t.Fatalf("read %d was answered, by %x", i, stream)
			}
			var got, remote *fabric.RemoteError
			switch {
			case fail == nil && (reads[i].Err != nil || !bytes.Equal(reads[i].Dst, want)):
				t.Fatalf("read %d: %x, error %v, want %x", i, reads[i].Dst, reads[i].Err, want)
			case errors.As(fail, &remote) && (!errors.As(reads[i].Err, &got) || got.Text != remote.Text),
				errors.Is(fail, fabric.ErrStale) && !errors.Is(reads[i].Err, fabric.ErrStale):
				t.Fatalf("read %d: error %v, want %v", i, reads[i].Err, fail)
			}
			left = rest
		}
		for i, n := range sizes {
			if side := room[i*(256+gap)+int(n) : (i+1)*(256+gap)]; bytes.Count(side, []byte{0xA5}) != len(side) {
				t.Fatalf("beside block %d: %x", i, side)
			}
		}
	})
}

// Reads that come one by one, all at once or in pieces get the same bytes as answers:
// ranks that ask for batches and ranks that do not understand each other.
func TestReadsOneByOneAndTogether(t *testing.T) {
	f, _ := serve(t, options(1, 1))
	r := fabrictest.Remote{Fabric: f, Rank: 1}
	var frames, want []byte
	var sizes []int
	for i := range 20 {
		src, err := r.Put(soon(t), int64(300*i), uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		gone := src
		if gone.Generation++; i%3 == 0 {
			src = gone
		}
		frame := encodeRead(src, uint64(time.Minute))
		frames = append(frames, frame[:]...)
		sizes = append(sizes, headerSize)
		if i%3 != 0 {
			sizes[i] += 300 * i
		}
	}
	conn := enter(t, f, forPayloads)
	for i, n := range sizes {
		answer := make([]byte, n)
		if _, err := conn.Write(frames[i*frameSize:][:frameSize]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, answer); err != nil {
			t.Fatal(err)
		}
		want = append(want, answer...)
	}
	for name, step := range map[string]int{"together": len(frames), "in pieces": 100} {
		conn := enter(t, f, forPayloads)
		for piece := range slices.Chunk(frames, step) {
			if _, err := conn.Write(piece); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: other answers than one by one; error %v", name, err)
		}
	}
}

// A peer that takes one read after the other is asked for a batch.
func TestBatchOfPeerWithoutBatches(t *testing.T) {
	f := impostor(t, func(conn net.Conn, _ purpose) {
		var ask [frameSize]byte
		for {
			if _, err := io.ReadFull(conn, ask[:]); err != nil {
				return
			}
			src, err := decodeRead((*[readSize]byte)(ask[headerSize:]))
			answer := header{kind: kindStale}.frame(nil)
			if src.Generation%3 > 0 {
				answer = append(header{kind: kindPayload, number: uint64(src.Length)}.frame(nil), bytes.Repeat([]byte{byte(src.Generation)}, int(src.Length))...)
			}
			if _, werr := conn.Write(answer); err != nil || werr != nil {
				return
			}
		}
	})
	room := mapped(t, fabric.MaxBatch*1000)
	reads := make([]fabric.Read, fabric.MaxBatch)
	for i := range reads {
		reads[i] = fabric.Read{Source: fabric.Source{Length: 1000, Generation: uint64(i)}, Dst: room[1000*i:][:1000]}
	}
	f.ReadBatch(soon(t), 1, reads)
	for i, r := range reads {
		if stale := i%3 == 0; errors.Is(r.Err, fabric.ErrStale) != stale || !stale && (r.Err != nil || bytes.Count(r.Dst, []byte{byte(i)}) != 1000) {
			t.Errorf("read %d: error %v, begins with %x", i, r.Err, r.Dst[:2])
		}
	}
}
