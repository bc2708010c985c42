package segmenttest

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/noise"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// ID is the segment that most tests write.
var ID = format.FileID{Rank: 3, Incarnation: 1}

func itemOf(p []byte, names []block.Name) tiers.Item {
	info := block.Info{ID: block.Sum(block.Bits128, p), Size: int64(len(p)), CRC: block.CRC(p)}
	return tiers.Item{Info: info, Names: names, Data: p}
}

// Item makes a block that a codec can halve, or, for every fourth seed, one of
// noise.
func Item(seed uint64, size int, names ...block.Name) tiers.Item {
	p := noise.Bytes(seed, size)
	for i := 1; i < len(p) && seed%4 != 3; i += 2 {
		p[i] = 0x3f
	}
	return itemOf(p, names)
}

// Tensor makes a block of normal numbers as bf16.
func Tensor(seed uint64, size int, names ...block.Name) tiers.Item {
	rng, p := rand.New(rand.NewPCG(seed, 1)), make([]byte, size)
	for i := 0; i+2 <= size; i += 2 {
		binary.LittleEndian.PutUint16(p[i:], uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
	}
	return itemOf(p, names)
}

// Name makes a name with a parent.
func Name(key string, seq uint64) block.Name {
	return block.Name{Namespace: "ns", Key: key, Parent: "before " + key, Depth: 7, Seq: seq}
}

// File is a vfs.File in memory.
type File struct{ Bytes []byte }

// Pread implements vfs.File.
func (f *File) Pread(p []byte, off int64) (int, error) {
	n := copy(p, f.Bytes[min(off, int64(len(f.Bytes))):])
	if n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// Pwrite implements vfs.File.
func (f *File) Pwrite(p []byte, off int64) (int, error) {
	f.Bytes = append(f.Bytes[:off], p...)
	return len(p), nil
}

// Pwritev implements vfs.File.
func (f *File) Pwritev(bufs [][]byte, off int64) (int64, error) {
	n, err := f.Pwrite(bytes.Join(bufs, nil), off)
	return int64(n), err
}

// Sync implements vfs.File.
func (f *File) Sync() error { return nil }

// Size implements vfs.File.
func (f *File) Size() (int64, error) { return int64(len(f.Bytes)), nil }

// Close implements vfs.File.
func (f *File) Close() error { return nil }

// Inspect returns what the segment ID has in file, with payloads or without.
func Inspect(t testing.TB, file []byte, payloads bool) *segfile.View {
	t.Helper()
	v, err := segfile.Inspect(&File{file}, ID, segfile.InspectOptions{Payloads: payloads, IDs: payloads, Buf: make([]byte, 64<<10)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Usable returns the ids of blocks that could be saved.
func Usable(v *segfile.View) map[block.ID]bool {
	ids := map[block.ID]bool{}
	for _, e := range v.Entries {
		if e.Kind == format.KindBlock && !e.Bad {
			ids[e.Info.ID] = true
		}
	}
	return ids
}

// Redraft writes the usable entries of a file as format.Drafts lays them out.
func Redraft(t testing.TB, file []byte, v *segfile.View, id format.FileID) []byte {
	t.Helper()
	var kept []format.Entry
	for _, e := range v.Entries {
		if !e.Bad {
			kept = append(kept, e.Entry)
		}
	}
	drafts := format.Drafts(id, format.Header{Layout: "plain"}, kept)
	if len(drafts) != 1 {
		t.Fatalf("%d drafts", len(drafts))
	}
	from, err := segfile.NewCopier(&File{file}, make([]byte, 64<<10), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	footer, err := drafts[0].WriteFrames(&out, from.Copy)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(footer)
	if int64(out.Len()) != drafts[0].Size() {
		t.Fatalf("%d bytes, announced were %d", out.Len(), drafts[0].Size())
	}
	return out.Bytes()
}

// Transfer copies a stream of size bytes as the segment id, with ids verified.
func Transfer(p []byte, size int64, id format.FileID) ([]byte, *segfile.Transfer, error) {
	a, err := segfile.NewTransfer(bytes.NewReader(p), size, segfile.InspectOptions{IDs: true, Buf: make([]byte, 64<<10)})
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	footer, err := a.Copy(&out, id)
	return append(out.Bytes(), footer...), a, err
}

// FixFrame gives the frame at off the checksum and identity it should have.
func FixFrame(p []byte, off int64) {
	if int64(len(p)) < off+format.HeadSize {
		return
	}
	h := p[off:]
	format.LE.PutUint64(h[24:], ID.Incarnation)
	format.LE.PutUint64(h[40:], ID.Number)
	if n := format.LE.Uint32(h[8:]); n >= format.HeadSize && int64(n) <= int64(len(h)) {
		format.LE.PutUint32(h[60:], format.FrameCRC(h[:n]))
	}
}
