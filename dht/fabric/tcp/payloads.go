package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"cascadekv/dht/fabric"
)

// read reads several blocks over one payload stream of the peer.
func (l *life) read(ctx context.Context, reads []fabric.Read) {
	done, err := l.exchange(ctx, reads)
	for i := range reads {
		if i >= done {
			reads[i].Err = err
		}
		l.named(reads[i].Err)
	}
}

// exchange is read until something goes wrong: done of the reads are answered, err
// is why the others are not.
func (l *life) exchange(ctx context.Context, reads []fabric.Read) (done int, err error) {
	for _, limit := range []chan struct{}{l.slots, l.fabric.kernel} {
		select {
		case limit <- struct{}{}:
			defer func() { <-limit }()
		case <-ctx.Done():
			return 0, l.fabric.cause(ctx, l)
		case <-l.ctx.Done():
			return 0, l.fabric.cause(ctx, l)
		}
	}
	w, err := l.take(ctx)
	if err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, w.interrupt)
	done, err = w.read(reads, left(ctx))
	// A wire that was interrupted, if only in the last moment, is of no use.
	l.give(w, stop() && err == nil)
	if err == nil {
		return done, nil
	}
	if cause := l.fabric.cause(ctx, l); cause != nil {
		return done, cause
	}
	return done, fmt.Errorf("%w: the stream broke: %w", fabric.ErrUnreachable, err)
}

// named adds the peer to a RemoteError.
func (l *life) named(err error) {
	if err == nil {
		return
	}
	if re, ok := errors.AsType[*fabric.RemoteError](err); ok {
		re.Peer = l.peer.Rank
	}
}

// take returns a payload stream to the peer, and opens one if none is idle.
func (l *life) take(ctx context.Context) (*wire, error) {
	l.mu.Lock()
	for n := len(l.idle); n > 0; n = len(l.idle) {
		w := l.idle[n-1]
		l.idle = l.idle[:n-1]
		l.fabric.idle.remove(w)
		if w.idle() {
			l.mu.Unlock()
			return w, nil
		}
		delete(l.wires, w)
		w.close()
	}
	l.mu.Unlock()
	conn, err := l.connect(ctx, forPayloads)
	if err != nil {
		return nil, err
	}
	w, err := newWire(conn, l)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fabric.ErrUnreachable, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		w.close()
		return nil, l.fabric.cause(ctx, l)
	}
	l.wires[w] = struct{}{}
	return w, nil
}

// give puts a stream back, or closes it when it can not be used again.
func (l *life) give(w *wire, good bool) {
	if oldest := l.put(w, good); oldest != nil {
		oldest.life.retire(oldest)
	}
}

// put does so, and returns a stream of some peer that is to be closed for it, nil for none.
func (l *life) put(w *wire, good bool) (oldest *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if good && !l.over {
		l.backoff = firstBackoff
		l.idle = append(l.idle, w)
		return l.fabric.idle.add(w)
	}
	delete(l.wires, w)
	w.close()
	return nil
}

// reading is the answering end of a payload stream.
type reading struct {
	fabric *Fabric
	in     io.Reader
	out    *sender
	frames [fabric.MaxBatch * frameSize]byte // reads that came together
	have   int                               // bytes of frames
	holds  []fabric.Hold                     // what out has to send
}

// frameSize is the length of a read's frame.
const frameSize = headerSize + readSize

// answerReads serves a payload stream until it ends.
func (f *Fabric) answerReads(conn net.Conn) error {
	out, err := newSender(conn)
	if err != nil {
		return err
	}
	r := &reading{fabric: f, in: newReceiver(conn), out: out}
	for err == nil {
		if err = r.receive(); err == nil {
			err = r.answer()
		}
	}
	if lost(err) {
		return nil // the reader has gone, or gave up
	}
	return err
}

// receive receives the next read, and those that come with it.
func (r *reading) receive() error {
	if err := r.out.await(r.fabric.lingering); err != nil {
		return err
	}
	n, err := io.ReadAtLeast(r.in, r.frames[r.have:], frameSize-r.have)
	r.have += n
	return err
}

// heldBytes is how many bytes of blocks are held to be sent together, if it is more than
// one.
const heldBytes = 1 << 20

// answer answers all reads that are here whole. Blocks that came to be asked for
// together are sent together.
func (r *reading) answer() error {
	defer r.release()
	var end time.Time // of what is to be sent
	bytes, at := int64(0), 0
	for ; r.have-at >= frameSize; at += frameSize {
		frame := r.frames[at:][:frameSize]
		h, err := decode((*[headerSize]byte)(frame))
		if err != nil {
			return err
		}
		if h.kind != kindRead {
			return fmt.Errorf("%w: kind %d instead of a read", errFrame, h.kind)
		}
		src, err := decodeRead((*[readSize]byte)(frame[headerSize:]))
		if err != nil {
			return err
		}
		if bytes > 0 && bytes+src.Length > heldBytes {
			if err := r.send(end); err != nil {
				return err
			}
			bytes, end = 0, time.Time{}
		}
		bytes += src.Length
		if e := time.Now().Add(limit(h.number, sendLimit) + grace); end.IsZero() || e.Before(end) {
			end = e
		}
		r.add(src)
	}
	r.have = copy(r.frames[:], r.frames[at:r.have])
	return r.send(end)
}

// add prepares the answer to one read: a payload out of held memory, or why not.
func (r *reading) add(src fabric.Source) {
	hold, err := r.fabric.hold(r.fabric.ctx, src)
	switch {
	case err == nil:
		r.holds = append(r.holds, hold)
		r.out.add(header{kind: kindPayload, number: uint64(src.Length)}, hold.Bytes())
	case errors.Is(err, fabric.ErrStale):
		r.out.add(header{kind: kindStale}, nil)
	default:
		text := []byte(clip(err.Error()))
		r.out.add(header{kind: kindFailure, length: len(text)}, text)
	}
}

// send sends what was added, until end at the latest: that bounds how long the memory
// stays held.
func (r *reading) send(end time.Time) error {
	defer r.release()
	return r.out.send(end)
}

// release lets go of what is held.
func (r *reading) release() {
	for i, h := range r.holds {
		h.Release()
		r.holds[i] = nil
	}
	r.holds = r.holds[:0]
}
