package indexbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// rebuild has a rank whose index is empty take a campaign in, as one does that
// starts on a node without an index: it lists the segments that another left,
// reads their footers, which are not in the page cache, and fills the index.
// Making the campaign is not measured.
func (b *bench) rebuild(ctx context.Context) (err error) {
	if err := b.close(); err != nil {
		return err
	}
	r, dir := &b.res.Rebuild, filepath.Join(b.dir, "campaign")
	r.Blocks = b.o.Rebuild
	if r.Segments, r.Bytes, err = writeCampaign(ctx, dir, b.o.Rebuild); err != nil {
		return err
	}
	if err := kit.DropCache(dir); err != nil {
		return err
	}
	t, err := lustre.Open(lustre.Options{Dir: dir, Rank: 0, OwnOnly: true, Catalogued: true})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if err := t.Recover(func(tiers.Entry) error { return nil }); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	began := time.Now()
	if err := t.OpenCatalogue(lustre.IndexOptions{Dir: filepath.Join(b.dir, "rebuilt"), Campaign: "bench"}); err != nil {
		return err
	}
	parts, err := t.Parts(ctx)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	names := 0
	got, err := t.Catalogue().AdoptParts(ctx, parts, func(found []tiers.Found) { names += len(found) })
	if err != nil {
		return err
	}
	r.Seconds = kit.Since(began)
	if err := errors.Join(got.Skipped...); err != nil || got.Blocks != r.Blocks || got.Names != r.Blocks || names != r.Blocks || got.Read != r.Segments {
		return fmt.Errorf("%w: %d blocks and %d names of %d segments were taken in, and %d names reported, of %d in %d: %w",
			kit.ErrWrong, got.Blocks, got.Names, got.Read, names, r.Blocks, r.Segments, err)
	}
	return b.readBack(ctx, t)
}

// readBack looks blocks up by their names and reads them.
func (b *bench) readBack(ctx context.Context, t *lustre.Tier) error {
	room := make([]byte, 64)
	for range 1000 {
		n := b.rand.Uint64N(uint64(b.o.Rebuild))
		want := seedOf(n)
		found := t.Catalogue().Find(namespace, []string{keyOf(n)})[0]
		if found.Info.ID != idOf(n) || found.Info.Size != int64(len(want)) {
			return fmt.Errorf("%w: after the rebuild name %d leads to %v of %d bytes", kit.ErrWrong, n, found.Info.ID, found.Info.Size)
		}
		got := room[:len(want)]
		if err := t.ReadSegment(ctx, found.Segment, found.Info, got); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("%w: after the rebuild block %d has other bytes: %w", kit.ErrWrong, n, err)
		}
	}
	return nil
}

// writeCampaign makes a directory of sealed segments, by another rank, with the
// blocks 0 to count and their names. Footers are those of blocks of any size:
// what a block holds here is what its id is the hash of, some bytes, so that a
// million of them fit on a small disk. It returns how many segments there are,
// and the bytes that their footers have.
func writeCampaign(ctx context.Context, dir string, count int) (segments int, footers int64, err error) {
	id := format.FileID{Rank: 1, Incarnation: 1}
	at := filepath.Join(dir, id.Dir())
	if err := os.MkdirAll(at, 0o700); err != nil {
		return 0, 0, fmt.Errorf("bench: %w", err)
	}
	var file bytes.Buffer
	for from := 0; from < count; from += segmentBlocks {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		var entries []format.Entry
		bytesOf := map[block.ID][]byte{}
		for n := uint64(from); n < uint64(min(count, from+segmentBlocks)); n++ {
			p := seedOf(n)
			info := block.Info{ID: idOf(n), Size: int64(len(p)), CRC: block.CRC(p)}
			bytesOf[info.ID] = p
			entries = append(entries,
				format.Entry{Kind: format.KindBlock, Info: info, Stored: info.Size, StoredCRC: info.CRC},
				format.Entry{Kind: format.KindName, Info: block.Info{ID: info.ID}, Name: nameOf(n)})
		}
		for _, d := range format.Drafts(id, format.Header{Created: time.Now()}, entries) {
			file.Reset()
			footer, err := d.WriteFrames(&file, func(e *format.Entry, w io.Writer) error {
				_, err := w.Write(bytesOf[e.Info.ID])
				return err
			})
			if err == nil {
				file.Write(footer)
				err = os.WriteFile(filepath.Join(at, d.ID.Name()), file.Bytes(), 0o600)
			}
			if err != nil {
				return 0, 0, fmt.Errorf("bench: %w", err)
			}
			segments, footers = segments+1, footers+int64(len(footer))
			id.Number = d.ID.Number + 1
		}
	}
	return segments, footers, kit.Settle(dir)
}

// options are those of the index that look-ups are measured on.
func (b *bench) options() index.Options {
	return index.Options{Dir: filepath.Join(b.dir, "index"), Campaign: "bench"}
}
