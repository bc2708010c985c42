package tcp

import (
	"fmt"

	"cascadekv/dht/fabric"
	"cascadekv/internal/arena"
)

// batch is the reads that are asked for on a payload stream, and how far their
// answers are here. The answers are received as if all were payloads, with as few
// calls of the kernel as there are; what came behind an answer that is none lies in
// the wrong place then, and is put aside.
type batch struct {
	reads  []fabric.Read
	at     int // the read whose answer is next
	got    int // bytes of that answer, its header included
	heads  [fabric.MaxBatch][headerSize]byte
	list   [2 * fabric.MaxBatch][]byte // of pieces
	frames [fabric.MaxBatch * frameSize]byte
}

// together is up to how many bytes of a payload that is on its way are received
// with what follows it. More are received by themselves, straight to their end.
const together = 64 << 10

// read asks for reads and receives their blocks. The first done of them are
// answered, and have their Err; err is why the others are not: the wire is of no use
// then.
func (w *wire) read(reads []fabric.Read, left uint64) (done int, err error) {
	b := &w.batch
	b.reads, b.at, b.got = reads, 0, 0
	defer func() {
		done, b.reads = b.at, nil
		clear(b.list[:])
		w.aside.free()
	}()
	if err := w.send(b.ask(left)); err != nil {
		return 0, err
	}
	for b.at < len(reads) {
		list := b.pieces()
		n := len(list[0])
		if b.got >= headerSize && (n > together || len(list) == 1) { // certain to come
			err = w.receiveAll(list[0])
		} else {
			n, err = w.receive(list)
		}
		if err != nil {
			return 0, err
		}
		for n > 0 && err == nil {
			n, err = w.account(n)
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// ask returns the frames of all reads.
func (b *batch) ask(left uint64) []byte {
	n := 0
	for i := range b.reads {
		frame := encodeRead(b.reads[i].Source, left)
		n += copy(b.frames[n:], frame[:])
	}
	return b.frames[:n]
}

// pieces lists where what is still to come belongs, if all of it is payloads.
func (b *batch) pieces() [][]byte {
	list := b.list[:0]
	for i, got := b.at, b.got; i < len(b.reads); i, got = i+1, 0 {
		if got < headerSize {
			list = append(list, b.heads[i][got:])
			got = headerSize
		}
		if rest := b.reads[i].Dst[got-headerSize:]; len(rest) > 0 {
			list = append(list, rest)
		}
	}
	return list
}

// account notes that n bytes came, up to the end of a header or an answer, and
// returns how many of them are left to be noted.
func (w *wire) account(n int) (int, error) {
	b := &w.batch
	size := headerSize + len(b.reads[b.at].Dst)
	if b.got < headerSize {
		k := min(n, headerSize-b.got)
		b.got, n = b.got+k, n-k
		if b.got < headerSize {
			return 0, nil
		}
		h, err := decode(&b.heads[b.at])
		switch {
		case err != nil:
			return 0, err
		case h.kind == kindStale || h.kind == kindFailure:
			return 0, w.refused(h, n)
		case h.kind != kindPayload || h.number != uint64(size-headerSize):
			return 0, fmt.Errorf("%w: kind %d with %d bytes instead of a payload of %d", errFrame, h.kind, h.number, size-headerSize)
		}
	}
	k := min(n, size-b.got)
	if b.got += k; b.got == size {
		b.reads[b.at].Err = nil
		b.at, b.got = b.at+1, 0
	}
	return n - k, nil
}

// refused ends a read that was answered by h instead of a payload. n bytes came
// behind h.
func (w *wire) refused(h header, n int) error {
	b := &w.batch
	if err := w.aside.add(b.pieces(), n); err != nil {
		return err
	}
	b.reads[b.at].Err = fabric.ErrStale
	if h.kind == kindFailure {
		text := make([]byte, h.length)
		if err := w.receiveAll(text); err != nil {
			return err
		}
		b.reads[b.at].Err = &fabric.RemoteError{Text: string(text)}
	}
	if len(w.aside.rest) > 0 && b.at == len(b.reads)-1 {
		return fmt.Errorf("%w: %d bytes after the last answer", errFrame, len(w.aside.rest))
	}
	b.at, b.got = b.at+1, 0
	return nil
}

// aside has bytes that came into memory where they do not belong. They are received
// once more, before what is in the stream.
type aside struct {
	memory *arena.Mapping // nil: there are none
	bytes  []byte         // in memory
	rest   []byte         // of bytes
}

// receive is wire.receive of what was put aside; 0: there is nothing.
func (a *aside) receive(pieces [][]byte) (total int) {
	if len(a.rest) == 0 {
		a.free()
	}
	for _, p := range pieces {
		n := copy(p, a.rest)
		a.rest, total = a.rest[n:], total+n
	}
	return total
}

// add puts the first n bytes that lie in pieces aside, which were received last.
func (a *aside) add(pieces [][]byte, n int) error {
	if a.memory != nil { // they were received from here, and are here still
		a.rest = a.bytes[len(a.bytes)-len(a.rest)-n:]
		return nil
	}
	if n == 0 {
		return nil
	}
	m, err := arena.MapAnonymous(int64(n))
	if err != nil {
		return err
	}
	a.memory, a.bytes = m, m.Bytes()[:n]
	a.rest = a.bytes
	for rest := a.rest; len(rest) > 0; pieces = pieces[1:] {
		rest = rest[copy(rest, pieces[0]):]
	}
	return nil
}

func (a *aside) free() {
	if a.memory != nil {
		_ = a.memory.Close() // what the kernel could complain of, nobody can mend
		*a = aside{}
	}
}
