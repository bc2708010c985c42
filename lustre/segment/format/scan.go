package format

import (
	"errors"
	"sync/atomic"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
)

// Scanner reads the entries of one segment.
type Scanner struct {
	File    vfs.File
	Size    int64
	Buf     []byte
	Reuse   []Entry       // memory for those of a footer
	Durable bool          // leave out what may not be durable
	Settle  bool          // make it so first
	Steps   *atomic.Int64 // counts reads as they end; nil: nobody asks

	Footer    bool  // there is a valid one
	Whole     int64 // without: bytes up to the end of the last whole frame
	Unsettled bool  // frames were left out for want of settle
	Unsafe    error // settling failed: frames were left out
	Hidden    error // frames were left out that were durable once
}

// Entries returns what counts of a segment (docs/format.md §1.7), payload
// offsets from the start of the file.
func (sc *Scanner) Entries(id FileID) ([]Entry, error) {
	if err := sc.Begin(id); err != nil {
		return nil, err
	}
	entries, ok := sc.ReadFooter(id)
	if sc.Footer = ok; ok {
		return entries, nil
	}
	return sc.ReadFrames(id)
}

// Begin finds out how large the file is, and that its header matches its name.
func (sc *Scanner) Begin(id FileID) error {
	var err error
	if sc.Size, err = sc.File.Size(); err != nil {
		return err
	}
	page, err := sc.read(0, PageSize)
	if err != nil {
		return err
	}
	return CheckHeader(page, id)
}

// read returns n bytes at off in the scanner's buffer. A file that is shorter
// is badly formed.
func (sc *Scanner) read(off, n int64) ([]byte, error) {
	if off < 0 || n > sc.Size-off {
		return nil, Errorf("%d bytes at %d of a file of %d", n, off, sc.Size)
	}
	if int64(cap(sc.Buf)) < n {
		sc.Buf = make([]byte, n)
	}
	_, err := sc.File.Pread(sc.Buf[:n], off)
	if sc.Steps != nil {
		sc.Steps.Add(1)
	}
	return sc.Buf[:n], err
}

// ReadFooter reads the footer; false when there is none that is valid.
func (sc *Scanner) ReadFooter(id FileID) ([]Entry, bool) {
	t, err := sc.read(sc.Size-TrailerSize, TrailerSize)
	if err != nil {
		return nil, false
	}
	off, size, ok := DecodeTrailer(t, sc.Size)
	if !ok {
		return nil, false
	}
	p, err := sc.read(off, size)
	if err != nil {
		return nil, false
	}
	f, err := DecodeFooter(p, id)
	if err != nil {
		return nil, false
	}
	entries, err := decodeTable(sc.Reuse[:0], f.Table, 0, f.Entries, off)
	return entries, err == nil
}

// scanned is a frame of an unsealed segment.
type scanned struct {
	entries []Entry
	synced  uint64
}

// ReadFrames reads frames up to the first bad one and then checks the payloads that
// may never have been durable. An error of the file system is returned: what
// it hides must not be taken for absent.
//
// What a process left in the page cache when it was killed can be read, but a
// power cut would still take it, and meanwhile it would count as stored. So it
// is synced once it has been read, which brings it out of the cache of another
// node. What cannot be is left out.
func (sc *Scanner) ReadFrames(id FileID) ([]Entry, error) {
	var frames []scanned
	for off := int64(PageSize); ; {
		sc.Whole = off
		fr, total, err := sc.frame(id, off, uint64(len(frames)))
		if errors.Is(err, ErrBadFormat) {
			if err := sc.lookBehind(id, off, uint64(len(frames))); err != nil {
				return nil, err
			}
			break
		}
		if err != nil {
			return nil, err
		}
		frames = append(frames, fr)
		off += total
	}
	var out []Entry
	durable := 0 // of those
	for i, fr := range frames {
		synced := uint64(i) < frames[len(frames)-1].synced
		if !synced {
			ok, err := sc.intact(fr.entries)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
		}
		out = append(out, fr.entries...)
		if synced {
			durable = len(out)
		}
	}
	if !sc.Durable || durable == len(out) {
		return out, nil
	}
	if sc.Unsettled = !sc.Settle; sc.Settle {
		sc.Unsafe = sc.File.Sync()
	}
	if sc.Unsettled || sc.Unsafe != nil {
		out = out[:durable]
	}
	return out, nil
}

// lookBehind looks for a frame behind the bad one at off that proves that the bad
// one was durable. Then it is damaged, and not what a crash left of a write.
func (sc *Scanner) lookBehind(id FileID, off int64, number uint64) error {
	for at := off + PageSize; at+PageSize <= sc.Size; at += PageSize {
		p, err := sc.read(at, PageSize)
		if err != nil {
			return err
		}
		h, err := DecodeFrameHeader(p)
		if err != nil || h.Number <= number || h.Synced <= number {
			continue
		}
		_, _, err = sc.frame(id, at, h.Number)
		if err == nil {
			sc.Hidden = Errorf("frame %d at %d is damaged; it and what lies behind it are left out: cascade fsck can repair that", number, off)
			return nil
		}
		if !errors.Is(err, ErrBadFormat) {
			return err
		}
	}
	return nil
}

// frame reads the frame at off; an error matches ErrBadFormat when there is
// none.
func (sc *Scanner) frame(id FileID, off int64, number uint64) (scanned, int64, error) {
	h, p, err := ReadFrame(id, off, number, sc.Size, sc.read)
	if err != nil {
		return scanned{}, 0, err
	}
	entries, err := decodeTable(nil, p[h.TableAt():], h.TableAt(), h.Entries, h.Total)
	for i := range entries {
		entries[i].Off += off
	}
	return scanned{entries, h.Synced}, h.Total, err
}

// intact verifies the payloads of entries.
func (sc *Scanner) intact(entries []Entry) (bool, error) {
	const piece = 1 << 20
	for _, e := range entries {
		if e.Kind != KindBlock {
			continue
		}
		var crc uint32
		for done := int64(0); done < e.Stored; done += piece {
			p, err := sc.read(e.Off+done, min(piece, e.Stored-done))
			if err != nil && !errors.Is(err, ErrBadFormat) {
				return false, err
			}
			crc = block.ExtendCRC(crc, p)
		}
		if crc != e.StoredCRC {
			return false, nil
		}
	}
	return true, nil
}
