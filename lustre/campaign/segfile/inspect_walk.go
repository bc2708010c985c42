package segfile

import (
	"errors"
	"slices"

	"cascadekv/lustre/segment/format"
)

// walk reads the headers and tables of all frames. Behind a bad frame it looks
// for the next intact one.
func (in *inspector) walk() error {
	in.tail = format.PageSize
	for number := uint64(0); in.tail < in.end; {
		fr, err := in.frame(in.tail, number)
		if errors.Is(err, format.ErrBadFormat) {
			in.tailErr = err
			if !in.sealed && !in.remains && in.footerHead(in.tail) {
				in.remains = true
				in.damage(BadFooter, in.tail, in.v.Size-in.tail, "there is a footer, but no valid trailer at the end of the file")
				in.end = in.tail
				return nil
			}
			fr, err = in.resync(in.tail, number)
			if err == nil && fr == nil {
				return nil
			}
			if err == nil {
				in.gaps = append(in.gaps, gap{in.tail, fr.off - in.tail, number, fr.number, len(in.frames), in.tailErr})
			}
		}
		if err != nil {
			return err
		}
		in.tailErr = nil
		if in.sealed {
			in.compare(fr)
		}
		in.frames = append(in.frames, *fr)
		in.tail, number = fr.off+fr.total, fr.number+1
	}
	return nil
}

// footerHead reports whether a footer of this file begins at off.
func (in *inspector) footerHead(off int64) bool {
	p, err := in.win.at(off, format.PageSize)
	return err == nil && string(p[:4]) == format.FooterMagic && format.LE.Uint64(p[24:]) == in.id.Incarnation && format.LE.Uint64(p[32:]) == in.id.Number
}

// frame reads the frame at off, whose number is at least that given and exactly
// that unless a gap lies before it. Errors match ErrBadFormat or are the file
// system's.
func (in *inspector) frame(off int64, number uint64) (*inspected, error) {
	h, p, err := format.ReadFrame(in.id, off, number, in.end, in.win.large)
	if err != nil {
		return nil, err
	}
	fr := &inspected{off: off, total: h.Total, number: h.Number, synced: h.Synced}
	fr.entries, fr.unknown, err = exportTable(p[h.TableAt():], off, off+h.Total, off+h.TableAt(), h.Entries)
	if err == nil {
		in.padding(fr, h.HeadLen)
	}
	return fr, err
}

// padding notes which bytes of a frame must be zero.
func (in *inspector) padding(fr *inspected, headLen int64) {
	if fr.unknown > 0 {
		return
	}
	at := fr.off + headLen
	for _, e := range fr.entries {
		if e.Kind == format.KindBlock && e.Off >= at {
			in.pads = append(in.pads, extent{at, e.Off - at})
			at = e.Off + e.Stored
		}
	}
	in.pads = append(in.pads, extent{at, fr.off + fr.total - at})
}

// resync finds the next intact frame behind the bad one at off, nil if there is
// none. A fixed header that still makes sense has its length; otherwise
// every page is looked at.
func (in *inspector) resync(off int64, number uint64) (*inspected, error) {
	p, err := in.page(off)
	if err != nil || p == nil {
		return nil, err
	}
	if h, err := format.DecodeFrameHeader(p); err == nil && h.Number == number && h.FileID.Number == in.id.Number && h.Total <= in.end-off {
		if off+h.Total == in.end {
			return nil, nil
		}
		fr, err := in.frame(off+h.Total, number+1)
		if err == nil || !errors.Is(err, format.ErrBadFormat) {
			return fr, err
		}
	}
	straight := in.win.straight
	in.win.straight = true
	defer func() { in.win.straight = straight }()
	for off += format.PageSize; off < in.end; off += format.PageSize {
		p, err := in.page(off)
		if err != nil || p == nil {
			return nil, err
		}
		h, err := format.DecodeFrameHeader(p)
		if err == nil && h.Number > number && h.Number-number <= uint64(in.end/format.PageSize) {
			fr, err := in.frame(off, h.Number)
			if err == nil || !errors.Is(err, format.ErrBadFormat) {
				return fr, err
			}
		}
		if !in.remains && in.footerHead(off) {
			in.remains = true
			in.damage(BadFooter, off, in.v.Size-off, "there is a footer, but no valid trailer at the end of the file")
			in.end = off
		}
	}
	return nil, nil
}

// page returns the page at off, nil when the file ends within it.
func (in *inspector) page(off int64) ([]byte, error) {
	if in.win.size-off < format.PageSize {
		return nil, nil
	}
	return in.win.at(off, format.PageSize)
}

// verify reads the payloads that must be read, and settles which frames count.
func (in *inspector) verify() error {
	if !in.sealed {
		return in.verifyFrames()
	}
	in.compareCounts()
	in.v.Entries = in.entries
	for i := range in.v.Entries {
		in.v.Entries[i].Hidden = in.v.Header == nil
	}
	if !in.o.Payloads {
		return nil
	}
	return in.payloads(in.v.Entries)
}

// verifyFrames applies docs/format.md §1.7 to a file without a valid footer,
// once as readers do and once with the gaps bridged that are known to be
// damage.
func (in *inspector) verifyFrames() error {
	seen := len(in.frames) // frames that readers take
	if len(in.gaps) > 0 {
		seen = in.gaps[0].before
	}
	count := in.bridge()
	if in.o.Payloads {
		tables := make([][]Entry, count)
		for i := range tables {
			tables[i] = in.frames[i].entries
		}
		if err := in.payloads(tables...); err != nil {
			return err
		}
	}
	var err error
	if seen, err = in.settle(min(seen, count)); err != nil {
		return err
	}
	if !in.remains {
		kept, err := in.settle(count)
		if err != nil {
			return err
		}
		if kept < count {
			in.cut(kept, format.Errorf("frame %d was perhaps never durable and has a payload that is not right", in.frames[kept].number))
		}
		count = kept
	}
	if in.v.Header == nil {
		seen = 0
	}
	for i, fr := range in.frames[:count] {
		for _, e := range fr.entries {
			e.Hidden = i >= seen
			in.v.Entries = append(in.v.Entries, e)
		}
	}
	return nil
}

// bridge returns how many frames are left when those behind the first gap that
// a crash explains are cut off.
func (in *inspector) bridge() int {
	var synced uint64
	for _, fr := range in.frames {
		synced = max(synced, fr.synced)
	}
	for _, g := range in.gaps {
		if !in.remains && synced < g.to {
			in.cut(g.before, g.why)
			return g.before
		}
	}
	return len(in.frames)
}

// cut drops the frames from index keep on.
func (in *inspector) cut(keep int, why error) {
	in.tail, in.tailErr = in.frames[keep].off, why
	if i := slices.IndexFunc(in.gaps, func(g gap) bool { return g.before >= keep }); i >= 0 {
		if in.gaps[i].before == keep {
			in.tail = in.gaps[i].off
		}
		in.gaps = in.gaps[:i]
	}
	in.frames = in.frames[:keep]
	in.v.Damage = slices.DeleteFunc(in.v.Damage, func(d Damage) bool { return d.Off >= in.tail })
	in.pads = slices.DeleteFunc(in.pads, func(x extent) bool { return x.off >= in.tail })
}

// settle returns how many of the first n frames count for a reader that sees
// just those: it verifies the ones that were perhaps never durable.
func (in *inspector) settle(n int) (int, error) {
	if n == 0 {
		return 0, nil
	}
	durable := in.frames[n-1].synced
	for i := range in.frames[:n] {
		fr := &in.frames[i]
		if fr.number < durable {
			continue
		}
		if !in.o.Payloads && !fr.checked {
			if err := in.payloads(fr.entries); err != nil {
				return 0, err
			}
			fr.checked = true
		}
		if slices.ContainsFunc(fr.entries, func(e Entry) bool { return e.torn }) {
			return i, nil
		}
	}
	return n, nil
}

// compare checks the entries of the next frame against the footer, as far as
// nothing is missing before it, and lets go of them.
func (in *inspector) compare(fr *inspected) {
	for _, e := range fr.entries {
		if len(in.gaps) > 0 || in.differ {
			break
		}
		same := in.matched < len(in.entries)
		if same {
			want := in.entries[in.matched]
			want.At = e.At // they need not agree on that
			same = want.Same(e)
		}
		if !same {
			in.differ = true
			in.damage(BadMatch, e.At, 0, "an entry of frame %d is not entry %d of the footer", fr.number, in.matched)
			break
		}
		in.matched++
	}
	fr.entries = nil
}

// compareCounts checks the footer's numbers against the frames.
func (in *inspector) compareCounts() {
	unknown := 0
	for _, fr := range in.frames {
		unknown += fr.unknown
	}
	whole := len(in.gaps) == 0 && in.tail == in.end
	if whole && !in.differ && (in.matched != len(in.entries) || unknown != in.v.Unknown || in.count != uint64(len(in.frames))) {
		in.damage(BadMatch, in.end, in.v.Size-in.end, "the footer tells of %d entries in %d frames, there are %d in %d",
			len(in.entries)+in.v.Unknown, in.count, in.matched+unknown, len(in.frames))
	}
}
