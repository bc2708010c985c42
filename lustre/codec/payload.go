package codec

import (
	"encoding/binary"

	"github.com/klauspost/compress/zstd"
)

// worker is what one encoding or decoding needs. One goroutine uses it at a
// time.
type worker struct {
	encoders
	decoder *zstd.Decoder
	planes  []byte // one piece, as planes
	hold    []byte // one piece, as stored
	piece   []byte // one piece, for DecodeFrom
	lengths []int
}

func newWorker() (*worker, error) {
	d, err := newDecoder()
	if err != nil {
		return nil, err
	}
	w := &worker{decoder: d, planes: make([]byte, maxPiece), hold: make([]byte, maxPiece)}
	w.room = make([]byte, 0, frameRoom)
	return w, nil
}

// encode writes src to dst and returns the length of the encoding, which is
// shorter than src. Errors: ErrUnknown, and ErrNoGain when it would not be, or
// when dst is too short; dst may be written to then.
func (w *worker) encode(n Number, effort Effort, dst, src []byte) (int, error) {
	l, err := layoutOf(n, len(src))
	if err != nil {
		return 0, err
	}
	at := l.table()
	if at >= len(src) || at > len(dst) {
		return 0, ErrNoGain
	}
	dst = dst[:min(len(dst), len(src)-1)]
	lengths := dst[:at]
	for i := range l.pieces {
		piece := src[i*l.piece:][:l.pieceLen(i)]
		planes := piece
		if l.planes > 1 {
			planes = w.planes[:len(piece)]
			Shuffle(planes, piece, l.planes)
		}
		for j := range l.planes {
			plane := planes[:l.planeLen(len(piece), j)]
			planes = planes[len(plane):]
			stored, err := w.frame(plane, effort)
			if err != nil {
				return 0, err
			}
			if stored == nil {
				stored = plane
			}
			if len(stored) > len(dst)-at {
				return 0, ErrNoGain
			}
			at += copy(dst[at:], stored)
			binary.LittleEndian.PutUint32(lengths, uint32(len(stored)))
			lengths = lengths[lengthBytes:]
		}
	}
	return at, nil
}

// decode makes a block of size bytes of its encoding, piece by piece: next returns
// the following bytes of the stored ones, valid until it is called again, room
// memory for the following bytes of the block, and done gets these. Errors:
// ErrUnknown, ErrCorrupt, those of next.
func (w *worker) decode(n Number, size, stored int, next func(n int) ([]byte, error), room func(n int) []byte, done func([]byte)) error {
	l, err := layoutOf(n, size)
	if err == nil && (stored >= size || stored < l.table()) {
		err = corrupt("%d bytes for a block of %d as %v", stored, size, n)
	}
	if err != nil {
		return err
	}
	p, err := next(l.table())
	if err == nil {
		err = w.readLengths(l, p, stored-l.table())
	}
	if err != nil {
		return err
	}
	for i, lengths := 0, w.lengths; i < l.pieces; i, lengths = i+1, lengths[l.planes:] {
		stored := 0
		for _, n := range lengths[:l.planes] {
			stored += n
		}
		if p, err = next(stored); err != nil {
			return err
		}
		piece := room(l.pieceLen(i))
		if err := w.decodePiece(l, piece, p, lengths[:l.planes]); err != nil {
			return err
		}
		done(piece)
	}
	return nil
}

// readLengths takes the table of lengths from p and checks it: no plane is
// longer than it should be, and together they are the left bytes behind it.
func (w *worker) readLengths(l layout, p []byte, left int) error {
	w.lengths = w.lengths[:0]
	for i := range l.pieces {
		for j := range l.planes {
			n := int64(binary.LittleEndian.Uint32(p[lengthBytes*len(w.lengths):]))
			if n > int64(l.planeLen(l.pieceLen(i), j)) || n > int64(left) {
				return corrupt("plane %d of piece %d has %d bytes, %d are left", j, i, n, left)
			}
			w.lengths = append(w.lengths, int(n))
			left -= int(n)
		}
	}
	if left != 0 {
		return corrupt("%d bytes behind the last plane", left)
	}
	return nil
}

// decodePiece fills dst from the planes in p, which does not overlap it.
func (w *worker) decodePiece(l layout, dst, p []byte, lengths []int) error {
	planes := dst
	if l.planes > 1 {
		planes = w.planes[:len(dst)]
	}
	rest := planes
	for j, n := range lengths {
		plane := rest[:l.planeLen(len(dst), j)]
		if n == len(plane) {
			copy(plane, p)
		} else if err := decodeFrame(w.decoder, plane, p[:n]); err != nil {
			return err
		}
		rest, p = rest[len(plane):], p[n:]
	}
	if l.planes > 1 {
		Unshuffle(dst, planes, l.planes)
	}
	return nil
}
