package format

import (
	"bytes"
	"fmt"
	"io"
	"time"
)

const (
	// DraftBytes bounds a drafted segment, unless one block alone is larger:
	// as large as the segments that ranks write.
	DraftBytes = 1 << 30
	// draftTable and draftPayload bound a frame of a draft: its table is built
	// in memory, and a reader of an unsealed file takes frames whole.
	draftTable, draftPayload = 256 << 10, 64 << 20
)

// Draft is the layout of one sealed segment whose entries lie elsewhere: what
// repair and export write. Its size is known before anything is read.
type Draft struct {
	ID     FileID
	Header Header
	Blocks int
	Names  int // the other entries

	frames []drafted
	end    int64 // of the frames
	table  int64 // bytes of the footer's table
}

// drafted is one frame of a draft.
type drafted struct {
	entries        []Entry
	headLen, total int64
}

// Drafts lays entries out in their order, in as many segments as it takes;
// their numbers count up from id's. It keeps entries.
func Drafts(id FileID, h Header, entries []Entry) []*Draft {
	var all []*Draft
	for len(entries) > 0 {
		d := &Draft{ID: id, Header: h, end: PageSize}
		entries = d.fill(entries)
		all = append(all, d)
		id.Number++
	}
	return all
}

// fill takes entries until the segment is full and returns the others.
func (d *Draft) fill(entries []Entry) []Entry {
	for len(entries) > 0 {
		fr := nextFrame(entries)
		table, blocks := d.table, 0
		for i := range fr.entries {
			e := &fr.entries[i]
			if e.Kind == KindBlock {
				table += BlockEntrySize
				blocks++
			} else {
				table += int64(e.Record().size())
			}
		}
		if len(d.frames) > 0 && d.end+fr.total+footerSize(HeadSize, table) > DraftBytes {
			break
		}
		d.frames, d.end, d.table = append(d.frames, fr), d.end+fr.total, table
		d.Blocks, d.Names = d.Blocks+blocks, d.Names+len(fr.entries)-blocks
		entries = entries[len(fr.entries):]
	}
	return entries
}

func nextFrame(entries []Entry) drafted {
	fr := drafted{headLen: HeadSize}
	payload, n := int64(0), 0
	for ; n < len(entries); n++ {
		e := &entries[n]
		size, outside := int64(e.Record().size()), int64(0)
		if e.Kind == KindBlock {
			size, outside = e.As().entrySize(), e.As().outside()
		}
		if n > 0 && (fr.headLen+size > draftTable || payload+e.Stored > draftPayload) {
			break
		}
		fr.headLen += size
		payload += outside
	}
	fr.entries, fr.total = entries[:n], Align(fr.headLen)+payload
	return fr
}

// Size returns the bytes of the whole file.
func (d *Draft) Size() int64 { return d.end + footerSize(HeadSize, d.table) }

// WriteFrames writes everything but the footer to w, in order, and returns the
// footer, which belongs behind it. payload writes the e.Stored bytes of a
// block; it must fail if they do not match the entry. An error is one of
// w or of payload.
func (d *Draft) WriteFrames(w io.Writer, payload func(e *Entry, w io.Writer) error) (footer []byte, err error) {
	if d.Header.Created.IsZero() {
		d.Header.Created = time.Unix(0, 0)
	}
	b := Builder{table: make([]byte, 0, d.table)}
	var head []byte
	var inline bytes.Buffer
	for _, fr := range d.frames {
		t := b.begin(head[:0], fr.headLen)
		for i := range fr.entries {
			e := &fr.entries[i]
			if e.Kind != KindBlock {
				t.record(e.Record())
				continue
			}
			inline.Reset()
			if e.As().Inline() {
				if err := e.copy(&inline, payload); err != nil {
					return nil, err
				}
			}
			t.block(e.Info, e.As(), inline.Bytes())
		}
		head = t.end(FrameHeader{FileID: d.ID, HeadLen: fr.headLen, Total: fr.total})
		if b.Frames == 0 {
			EncodeHeader(head, d.ID, d.Header)
		}
		if _, err := w.Write(head); err != nil {
			return nil, err
		}
		for i := range fr.entries {
			e := &fr.entries[i]
			if e.Kind != KindBlock || e.As().Inline() {
				continue
			}
			if err := e.copy(w, payload); err != nil {
				return nil, err
			}
			if _, err := w.Write(Zeros[:Align(e.Stored)-e.Stored]); err != nil {
				return nil, err
			}
		}
		b.Off += fr.total
		b.Frames++
	}
	return b.Footer(d.ID), nil
}

// copy has the payload of a block written to w, and makes sure that it is whole.
func (e *Entry) copy(w io.Writer, payload func(*Entry, io.Writer) error) error {
	n := &counter{w: w}
	if err := payload(e, n); err != nil {
		return err
	}
	if n.n != e.Stored {
		return fmt.Errorf("segment: %d of the %d bytes of block %v were given", n.n, e.Stored, e.Info.ID)
	}
	return nil
}

// counter counts what goes to w.
type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
