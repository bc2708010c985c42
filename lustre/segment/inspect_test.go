package segment

import (
	"bytes"
	"io"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
)

var smallID = format.FileID{Rank: 3, Incarnation: 1}

// memFile is a file in memory.
type memFile struct{ p []byte }

func (m *memFile) Pread(p []byte, off int64) (int, error) {
	if off >= int64(len(m.p)) {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, m.p[off:])
	if n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

func (m *memFile) Pwrite(p []byte, off int64) (int, error) {
	m.p = append(m.p[:off], p...)
	return len(p), nil
}

func (m *memFile) Pwritev(bufs [][]byte, off int64) (int64, error) {
	n, err := m.Pwrite(bytes.Join(bufs, nil), off)
	return int64(n), err
}

func (m *memFile) Sync() error          { return nil }
func (m *memFile) Size() (int64, error) { return int64(len(m.p)), nil }
func (m *memFile) Close() error         { return nil }

func inspect(t testing.TB, file []byte, payloads bool) *segfile.View {
	t.Helper()
	v, err := segfile.Inspect(&memFile{file}, smallID, segfile.InspectOptions{Payloads: payloads, IDs: payloads, Buf: make([]byte, 64<<10)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func usable(v *segfile.View) map[block.ID]bool {
	ids := map[block.ID]bool{}
	for _, e := range v.Entries {
		if e.Kind == format.KindBlock && !e.Bad {
			ids[e.Info.ID] = true
		}
	}
	return ids
}

// redraft writes the usable entries of a file as format.Drafts lays them out.
func redraft(t testing.TB, file []byte, v *segfile.View, id format.FileID) []byte {
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
	from, err := segfile.NewCopier(&memFile{file}, make([]byte, 64<<10), nil)
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

func transfer(p []byte, size int64, as format.FileID) ([]byte, *segfile.Transfer, error) {
	a, err := segfile.NewTransfer(bytes.NewReader(p), size, segfile.InspectOptions{IDs: true, Buf: make([]byte, 64<<10)})
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	footer, err := a.Copy(&out, as)
	return append(out.Bytes(), footer...), a, err
}

// fixFrame gives the frame at off the checksum and identity it should have.
func fixFrame(p []byte, off int64) {
	if int64(len(p)) < off+format.FrameHeaderSize {
		return
	}
	h := p[off:]
	format.LE.PutUint64(h[24:], smallID.Incarnation)
	format.LE.PutUint64(h[40:], smallID.Number)
	if n := format.LE.Uint32(h[8:]); n >= format.FrameHeaderSize && int64(n) <= int64(len(h)) {
		format.LE.PutUint32(h[60:], format.FrameCRC(h[:n]))
	}
}
