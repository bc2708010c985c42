package campaign

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// ExportOptions say what a stream shall hold. The zero value means everything
// that readers of the campaign see, each block once.
type ExportOptions struct {
	Namespaces []string  // only names of these, and the blocks they point to
	NewerThan  time.Time // only names written since then, and their blocks
	Live       bool      // only the newest record of each name, and its block
	Program    string    // noted in the stream
}

// Exported is what a stream holds.
type Exported struct {
	Segments int      `json:"segments"`
	Blocks   int      `json:"blocks"`
	Names    int      `json:"name_records"`
	Bytes    int64    `json:"bytes"` // of the segments in the stream
	Damaged  int      `json:"damaged_blocks_left_out"`
	LeftOut  []string `json:"left_out,omitempty"` // segments that could not be read, and why
}

// Export writes the campaign to w as one stream. Damaged blocks are left out,
// and so are segments that cannot be read. Errors: ErrNoCampaign, those of w,
// ctx's, and tiers.ErrCorrupt when a block changes between the two times it
// is read; the stream then has no end, and an import of it keeps the segments
// before.
func Export(ctx context.Context, o Options, w io.Writer, what ExportOptions) (*Exported, error) {
	h := head{
		Format: streamFormat, Version: streamVersion, Program: what.Program,
		Namespaces: what.Namespaces, NewerThan: what.NewerThan, Live: what.Live,
	}
	report := o.Progress
	o.Progress = nil
	o.setDefaults()
	c, err := o.scan(ctx, segfile.InspectOptions{}, h)
	if err != nil {
		return nil, err
	}
	h.Created = c.o.Now().UTC()
	x := &exporter{c: c, head: h, meter: &meter{report: report}, next: map[string]uint64{}}
	x.tar = tar.NewWriter(&stream{ctx: ctx, w: w})
	for _, s := range c.segments {
		x.meter.total += passes * s.Bytes
	}
	err = withBuffers(func(buf, _ []byte) error {
		x.buf = buf
		return x.run(ctx)
	})
	return &x.done, err
}

// passes is how often a payload is read: to see that it is right, and to copy
// it. A stream has the size of a segment before its bytes, so a block cannot
// be left out any more once it has begun.
const passes = 2

// exporter is the work of one Export.
type exporter struct {
	c     *contents
	head  head
	tar   *tar.Writer
	buf   []byte
	meter *meter
	next  map[string]uint64 // by incarnation: number of its next segment in the stream
	done  Exported
}

func (x *exporter) run(ctx context.Context) error {
	if err := writeRecord(x.tar, headName, x.head.Created, x.head); err != nil {
		return err
	}
	read := int64(0)
	for i, s := range x.c.segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.err == nil {
			s.err = x.segment(i, s)
		}
		var left *leftOut
		switch {
		case errors.As(s.err, &left), s.err != nil && s.State == "":
			if !errors.Is(s.err, os.ErrNotExist) {
				x.done.LeftOut = append(x.done.LeftOut, fmt.Sprintf("%s: %v", s.Path, s.err))
			}
		case s.err != nil:
			return s.err
		}
		read += passes * s.Bytes
		x.meter.add(read - x.meter.done) // it may have turned out shorter
	}
	e := end{Segments: x.done.Segments, Blocks: x.done.Blocks, Names: x.done.Names, Bytes: x.done.Bytes}
	if err := writeRecord(x.tar, endName, x.head.Created, e); err != nil {
		return err
	}
	return x.tar.Close()
}

// leftOut is the error of a segment of which nothing has been written yet.
type leftOut struct{ error }

func (l *leftOut) Unwrap() error { return l.error }

// segment writes what is wanted of segment i.
func (x *exporter) segment(i int, s *Segment) error {
	f, v, err := x.c.o.open(s, segfile.InspectOptions{Buf: x.buf})
	if err != nil {
		return &leftOut{err}
	}
	defer f.Close() // only read: its error means nothing
	if v.Unknown > 0 {
		x.done.LeftOut = append(x.done.LeftOut, fmt.Sprintf("%s: %d entries of kinds that this program does not know", s.Path, v.Unknown))
	}
	from, err := segfile.NewCopier(f, x.buf, x.meter.add)
	if err != nil {
		return &leftOut{err}
	}
	kept, err := x.choose(i, v.Entries, from)
	if err != nil {
		return &leftOut{err}
	}
	id := s.id
	id.Number = x.next[id.Dir()]
	for _, d := range format.Drafts(id, v.NewHeader(), kept) {
		if err := x.draft(d, s.Path, from); err != nil {
			return fmt.Errorf("export of %s: %w", s.Path, err)
		}
		x.next[id.Dir()]++
	}
	return nil
}

// choose returns the entries that belong into the stream. It reads the payloads
// of their blocks, so that what is damaged stays behind.
func (x *exporter) choose(i int, entries []segfile.Entry, from *segfile.Copier) ([]format.Entry, error) {
	var kept, layouts []format.Entry
	for k := range entries {
		e := &entries[k]
		if e.Hidden || e.Bad {
			continue
		}
		if e.Kind == format.KindLayout {
			if x.head.asks(e.Name.Namespace) {
				layouts = append(layouts, e.Entry)
			}
			continue
		}
		if e.Kind != format.KindBlock {
			if x.head.matches(e.Name) && (!x.head.Live || e.Kind == format.KindName && x.c.survey.lives(i, e)) {
				kept = append(kept, e.Entry)
			}
			continue
		}
		c := x.c.survey.where[e.Info.ID]
		if c == nil || c.given || !c.wanted && !x.head.all() {
			continue
		}
		if err := from.Copy(&e.Entry, io.Discard); errors.Is(err, tiers.ErrCorrupt) {
			x.done.Damaged++
			continue
		} else if err != nil {
			for _, e := range kept { // other segments may give what this one could not
				if e.Kind == format.KindBlock {
					x.c.survey.where[e.Info.ID].given = false
				}
			}
			return nil, err
		}
		c.given = true
		kept = append(kept, e.Entry)
	}
	if len(kept) > 0 {
		kept = append(kept, layouts...)
	}
	return kept, nil
}

// draft writes one segment and the record behind it.
func (x *exporter) draft(d *format.Draft, source string, from *segfile.Copier) error {
	n := x.done.Segments
	if err := x.tar.WriteHeader(fileHeader(segmentEntry(n), d.Size(), x.head.Created)); err != nil {
		return err
	}
	sum := sha256.New()
	w := io.MultiWriter(x.tar, sum)
	footer, err := d.WriteFrames(w, from.Copy)
	if err == nil {
		_, err = w.Write(footer)
	}
	if err != nil {
		return err
	}
	x.done.Segments++
	x.done.Blocks += d.Blocks
	x.done.Names += d.Names
	x.done.Bytes += d.Size()
	return writeRecord(x.tar, recordEntry(n), x.head.Created, record{
		File: segmentEntry(n), Source: source, Bytes: d.Size(), SHA256: hex.EncodeToString(sum.Sum(nil)), Blocks: d.Blocks, Names: d.Names,
	})
}
