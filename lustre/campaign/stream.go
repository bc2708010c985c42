package campaign

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cascadekv/internal/block"
)

// What a stream is made of: docs/campaigns.md describes it.
const (
	streamFormat  = "cascade-campaign"
	streamVersion = 1

	headName = "campaign.json"
	endName  = "end.json"

	// maxRecord bounds a JSON record of a stream, in bytes.
	maxRecord = 64 << 10
)

func segmentEntry(n int) string { return fmt.Sprintf("segments/%06d.bin", n) }
func recordEntry(n int) string  { return fmt.Sprintf("segments/%06d.json", n) }

// head is the first entry of a stream.
type head struct {
	Format     string    `json:"format"`
	Version    int       `json:"version"`
	Created    time.Time `json:"created"`
	Program    string    `json:"program,omitempty"`
	Namespaces []string  `json:"namespaces,omitempty"`
	NewerThan  time.Time `json:"newer_than,omitzero"`
	Live       bool      `json:"live,omitempty"`
}

// record follows each segment.
type record struct {
	File   string `json:"file"`
	Source string `json:"source"` // in the campaign it comes from
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Blocks int    `json:"blocks"`
	Names  int    `json:"names"`
}

// end is the last entry: without it a stream was cut off.
type end struct {
	Segments int   `json:"segments"`
	Blocks   int   `json:"blocks"`
	Names    int   `json:"names"`
	Bytes    int64 `json:"bytes"` // of the segments
}

// writeRecord adds v as a JSON file.
func writeRecord(w *tar.Writer, name string, at time.Time, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if err := w.WriteHeader(fileHeader(name, int64(len(text)), at)); err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

func fileHeader(name string, size int64, at time.Time) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: at.Truncate(time.Second), Format: tar.FormatUSTAR}
}

// readRecord decodes a JSON file of a stream into v; nothing in it may be
// unknown.
func readRecord(r io.Reader, h *tar.Header, v any) error {
	if h.Size > maxRecord {
		return fmt.Errorf("%w: %s has %d bytes, at most %d", ErrBadStream, h.Name, h.Size, maxRecord)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return streamError(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBadStream, h.Name, err)
	}
	return nil
}

// plain refuses everything but ordinary files with nothing extra: no links, no
// directories, no sparse files, no names but those that export writes.
func plain(h *tar.Header, names ...string) error {
	if h.Typeflag != tar.TypeReg || h.Linkname != "" || len(h.PAXRecords) > 0 {
		return fmt.Errorf("%w: %.80q is not a plain file", ErrBadStream, h.Name)
	}
	for _, n := range names {
		if h.Name == n {
			return nil
		}
	}
	return fmt.Errorf("%w: %.80q where %s belongs", ErrBadStream, h.Name, strings.Join(names, " or "))
}

// matches reports whether a name was asked for.
func (h head) matches(n block.Name) bool {
	if !h.NewerThan.IsZero() && n.Seq < uint64(max(0, h.NewerThan.UnixNano())) {
		return false
	}
	return h.asks(n.Namespace)
}

// asks reports whether something of a namespace was asked for.
func (h head) asks(ns string) bool {
	return len(h.Namespaces) == 0 || slices.Contains(h.Namespaces, ns)
}

// all reports whether nothing is left out.
func (h head) all() bool { return len(h.Namespaces) == 0 && h.NewerThan.IsZero() && !h.Live }

// stream reads or writes until ctx ends, and counts what is read.
type stream struct {
	ctx   context.Context
	r     io.Reader
	w     io.Writer
	meter *meter
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := s.r.Read(p)
	s.meter.add(int64(n))
	return n, err
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.w.Write(p)
}
