package campaign

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// ImportOptions say how a stream is read.
type ImportOptions struct {
	IDs  bool  // compute the ids of blocks too: for streams from elsewhere
	Size int64 // of the stream in bytes, for Progress; 0: unknown
}

// Imported is what became of a stream.
type Imported struct {
	Segments int      `json:"segments"`
	Blocks   int      `json:"blocks"`
	Names    int      `json:"name_records"`
	Bytes    int64    `json:"bytes"` // of the segments
	Into     []string `json:"into"`  // the new directories of incarnations
	Refused  []string `json:"refused,omitempty"`
	Complete bool     `json:"complete"` // the stream has an end, and all of it was taken
}

// Import reads a stream and adds its segments to the campaign, which is made if
// it is not there. Each is published as soon as all its bytes have been
// verified; a damaged one is left out, named in Refused, and the next one is
// tried. Each incarnation keeps its name if that is free and gets a new one
// otherwise. Errors: ErrCutOff and ErrBadStream, with what came before kept;
// the file system's; ctx's.
func Import(ctx context.Context, o Options, r io.Reader, how ImportOptions) (*Imported, error) {
	o.setDefaults()
	if err := lease.MkdirAll(o.FS, o.Dir); err != nil {
		return &Imported{}, fmt.Errorf("%w: %w", ErrNoCampaign, err)
	}
	m := &importer{o: &o, how: how, dirs: map[string]*format.FileID{}, sum: sha256.New()}
	m.tar = tar.NewReader(&stream{ctx: ctx, r: r, meter: &meter{report: o.Progress, total: how.Size}})
	err := withBuffers(func(in, out []byte) error {
		m.in, m.out = in, out
		return m.run()
	})
	for _, id := range m.dirs {
		if !slices.Contains(m.done.Into, id.Dir()) { // nothing was published there
			_ = unix.Rmdir(filepath.Join(o.Dir, id.Dir())) // one that stays does no harm
		}
	}
	m.done.Complete = err == nil && len(m.done.Refused) == 0
	return &m.done, err
}

// importer is the work of one Import.
type importer struct {
	o       *Options
	how     ImportOptions
	tar     *tar.Reader
	sum     hash.Hash
	in, out []byte
	dirs    map[string]*format.FileID // by incarnation of the stream: the next new segment
	done    Imported
}

// next returns the next entry, which must be one of names.
func (m *importer) next(names ...string) (*tar.Header, error) {
	h, err := m.tar.Next()
	if err == io.EOF {
		return nil, fmt.Errorf("%w: there is no %s", ErrCutOff, names[len(names)-1])
	}
	if err != nil {
		return nil, streamError(err)
	}
	return h, plain(h, names...)
}

// streamError gives an error of reading the stream its kind. Errors of the file
// system below it, and of a context, keep their own.
func streamError(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", ErrCutOff, err)
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong), errors.Is(err, tar.ErrInsecurePath):
		return fmt.Errorf("%w: %w", ErrBadStream, err)
	}
	return err
}

func (m *importer) run() error {
	h, err := m.next(headName)
	if err != nil {
		return err
	}
	var first head
	if err := readRecord(m.tar, h, &first); err != nil {
		return err
	}
	if first.Format != streamFormat || first.Version != streamVersion {
		return fmt.Errorf("%w: format %.40q version %d, this program reads %s version %d", ErrBadStream, first.Format, first.Version, streamFormat, streamVersion)
	}
	for n := 0; ; n++ {
		h, err := m.next(segmentEntry(n), endName)
		if err != nil {
			return err
		}
		if h.Name == endName {
			return m.end(h, n)
		}
		if err := m.segment(h, n); err != nil {
			return err
		}
	}
}

// segment takes segment n of the stream, with its record. An error ends the
// import.
func (m *importer) segment(h *tar.Header, n int) error {
	size := h.Size
	m.sum.Reset()
	a, err := segfile.NewTransfer(io.TeeReader(m.tar, m.sum), size, segfile.InspectOptions{IDs: m.how.IDs, Buf: m.in})
	if err != nil {
		return m.refuse(n, err, false)
	}
	id, err := m.place(a.From)
	if err != nil {
		return err
	}
	recordSeen := false
	err = m.o.publish(*id, m.out, func(w *sink) ([]byte, error) {
		footer, err := a.Copy(w, *id)
		if err != nil {
			return nil, err
		}
		recordSeen = true
		return footer, m.record(a, n, size)
	})
	if err != nil {
		return m.refuse(n, err, recordSeen)
	}
	if dir := id.Dir(); !slices.Contains(m.done.Into, dir) {
		m.done.Into = append(m.done.Into, dir)
	}
	id.Number++
	m.done.Segments++
	m.done.Blocks += a.Blocks
	m.done.Names += a.Names
	m.done.Bytes += size
	return nil
}

// errMismatch is a record that does not match the segment before it.
var errMismatch = errors.New("its record does not match it")

// record compares the record behind a segment with what was read.
func (m *importer) record(a *segfile.Transfer, n int, size int64) error {
	sum := hex.EncodeToString(m.sum.Sum(nil))
	h, err := m.next(recordEntry(n))
	if err != nil {
		return err
	}
	var r record
	if err := readRecord(m.tar, h, &r); err != nil {
		return err
	}
	if r.File != segmentEntry(n) || r.Bytes != size || r.SHA256 != sum || r.Blocks != a.Blocks || r.Names != a.Names {
		return errMismatch
	}
	return nil
}

// refuse notes a damaged segment, and passes its record over unless that was
// read. All other errors are returned.
func (m *importer) refuse(n int, err error, recordSeen bool) error {
	if !errors.Is(err, format.ErrBadFormat) && !errors.Is(err, tiers.ErrCorrupt) && !errors.Is(err, errMismatch) {
		return streamError(err)
	}
	m.done.Refused = append(m.done.Refused, fmt.Sprintf("%s: %v", segmentEntry(n), err))
	if recordSeen {
		return nil
	}
	_, err = m.next(recordEntry(n))
	return err
}

// place returns the id for the next segment of an incarnation of the stream.
func (m *importer) place(from format.FileID) (*format.FileID, error) {
	if id := m.dirs[from.Dir()]; id != nil {
		return id, nil
	}
	id, err := m.o.makeIncarnation(from.Rank, from.Incarnation)
	if err != nil {
		return nil, err
	}
	m.dirs[from.Dir()] = &id
	return &id, nil
}

// end checks the last entry.
func (m *importer) end(h *tar.Header, n int) error {
	var e end
	if err := readRecord(m.tar, h, &e); err != nil {
		return err
	}
	if e.Segments != n {
		return fmt.Errorf("%w: it held %d segments, there are %d", ErrBadStream, e.Segments, n)
	}
	if len(m.done.Refused) == 0 && (e.Blocks != m.done.Blocks || e.Names != m.done.Names || e.Bytes != m.done.Bytes) {
		return fmt.Errorf("%w: %s does not add up", ErrBadStream, endName)
	}
	if _, err := m.tar.Next(); err != io.EOF {
		return fmt.Errorf("%w: it goes on behind %s", ErrBadStream, endName)
	}
	return nil
}
