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

// read is one read over a payload stream of the peer.
func (l *life) read(ctx context.Context, src fabric.Source, dst []byte) error {
	for _, limit := range []chan struct{}{l.slots, l.fabric.kernel} {
		select {
		case limit <- struct{}{}:
			defer func() { <-limit }()
		case <-ctx.Done():
			return l.fabric.cause(ctx, l)
		case <-l.ctx.Done():
			return l.fabric.cause(ctx, l)
		}
	}
	w, err := l.take(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, w.interrupt)
	err = w.read(src, dst, left(ctx))
	// A wire that was interrupted, if only in the last moment, is of no use.
	whole := err == nil || errors.Is(err, fabric.ErrStale) || isRemote(err)
	l.give(w, stop() && whole)
	switch cause := l.fabric.cause(ctx, l); {
	case whole:
		return l.named(err)
	case cause != nil:
		return cause
	}
	return fmt.Errorf("%w: the stream broke: %w", fabric.ErrUnreachable, err)
}

func isRemote(err error) bool {
	_, ok := errors.AsType[*fabric.RemoteError](err)
	return ok
}

// named adds the peer to a RemoteError.
func (l *life) named(err error) error {
	if re, ok := errors.AsType[*fabric.RemoteError](err); ok {
		re.Peer = l.peer.Rank
	}
	return err
}

// take returns a payload stream to the peer, and opens one if none is idle.
func (l *life) take(ctx context.Context) (*wire, error) {
	l.mu.Lock()
	for n := len(l.idle); n > 0; n = len(l.idle) {
		w := l.idle[n-1]
		l.idle = l.idle[:n-1]
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
	w, err := newWire(conn)
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if good && !l.over {
		l.backoff = firstBackoff
		l.idle = append(l.idle, w)
		return
	}
	delete(l.wires, w)
	w.close()
}

// read asks for src and receives it into dst. Errors: ErrStale and
// *RemoteError, after which the wire is as it should be, and others.
func (w *wire) read(src fabric.Source, dst []byte, left uint64) error {
	ask := encodeRead(src, left)
	if err := w.send(ask[:]); err != nil {
		return err
	}
	var head [headerSize]byte
	n, err := w.receive(head[:], dst)
	if err != nil {
		return err
	}
	h, err := decode(&head)
	if err != nil {
		return err
	}
	switch {
	case h.kind == kindPayload && h.number == uint64(len(dst)):
		return w.fill(dst[n:])
	case h.kind == kindStale && n == 0:
		return fabric.ErrStale
	case h.kind == kindFailure:
		return w.failure(h.length, dst[:n])
	}
	return fmt.Errorf("%w: kind %d with %d bytes instead of a payload of %d", errFrame, h.kind, h.number, len(dst))
}

// failure receives the text of an error, of which some came into memory that
// was meant for the payload.
func (w *wire) failure(length int, came []byte) error {
	if len(came) > length {
		return fmt.Errorf("%w: %d bytes after an error", errFrame, len(came)-length)
	}
	text := make([]byte, length)
	if err := w.fill(text[copy(text, came):]); err != nil {
		return err
	}
	return &fabric.RemoteError{Text: string(text)}
}

// answerReads serves a payload stream until it ends.
func (f *Fabric) answerReads(conn net.Conn) error {
	out, err := newSender(conn)
	if err != nil {
		return err
	}
	var frame [headerSize + readSize]byte
	for {
		if err := out.await(f.lingering); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, frame[:]); err != nil {
			if lost(err) {
				return nil
			}
			return err
		}
		h, err := decode((*[headerSize]byte)(frame[:]))
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
		if err := f.answerRead(out, src, limit(h.number, sendLimit)+grace); err != nil {
			if lost(err) {
				return nil // the reader gave up
			}
			return err
		}
	}
}

// answerRead sends a payload out of the held memory, or says why not. The time
// bounds how long the memory stays held.
func (f *Fabric) answerRead(out *sender, src fabric.Source, most time.Duration) error {
	end := time.Now().Add(most)
	hold, err := f.hold(f.ctx, src)
	switch {
	case errors.Is(err, fabric.ErrStale):
		return out.send(header{kind: kindStale}, nil, end)
	case err != nil:
		text := clip(err.Error())
		return out.send(header{kind: kindFailure, length: len(text)}, []byte(text), end)
	}
	defer hold.Release()
	return out.send(header{kind: kindPayload, number: uint64(src.Length)}, hold.Bytes(), end)
}
