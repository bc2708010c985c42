package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

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

var smallID = format.FileID{Rank: 3, Incarnation: 1}

func inspect(t testing.TB, file []byte, payloads bool) *View {
	t.Helper()
	v, err := Inspect(&memFile{file}, smallID, InspectOptions{Payloads: payloads, IDs: payloads, Buf: make([]byte, 64<<10)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// readers returns what Recover takes of a file.
func readers(t testing.TB, file []byte) []format.Entry {
	t.Helper()
	sc := format.Scanner{File: &memFile{file}}
	entries, err := sc.Entries(smallID)
	if err != nil && !errors.Is(err, format.ErrBadFormat) {
		t.Fatal(err)
	}
	return entries
}

// wantReaders compares the entries that v calls visible with those that
// Recover takes.
func wantReaders(t testing.TB, what string, v *View, file []byte) {
	t.Helper()
	var got []string
	for _, e := range v.Entries {
		if !e.Hidden && e.Known() {
			got = append(got, fmt.Sprint(e.Kind, e.Info, e.Name, e.Off))
		}
	}
	var want []string
	for _, e := range readers(t, file) {
		if e.Kind != format.KindBlock {
			e.Off = 0
		}
		want = append(want, fmt.Sprint(format.Kind(e.Kind), e.Info, e.Name, e.Off))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%s: Inspect shows\n%v\nreaders see\n%v\ndamage %+v", what, got, want, v.Damage)
	}
}

// usable returns the ids of blocks that could be saved.
func usable(v *View) map[block.ID]bool {
	ids := map[block.ID]bool{}
	for _, e := range v.Entries {
		if e.Kind == format.KindBlock && !e.Bad {
			ids[e.Info.ID] = true
		}
	}
	return ids
}

func TestInspectWholeSegments(t *testing.T) {
	for name, sealed := range map[string]bool{"crashed": false, "sealed": true} {
		t.Run(name, func(t *testing.T) {
			file, items, _ := smallSegment(t, sealed)
			for _, payloads := range []bool{false, true} {
				v := inspect(t, file, payloads)
				want := StateOpen
				if sealed {
					want = StateSealed
				}
				if v.State != want || len(v.Damage) != 0 || v.Frames != len(items) || len(v.Entries) != 2*len(items) || v.Header == nil || v.Footer != sealed {
					t.Errorf("payloads %v: %v, %d frames, %d entries, %+v", payloads, v.State, v.Frames, len(v.Entries), v.Damage)
				}
				wantReaders(t, name, v, file)
			}
		})
	}
}

// TestInspectFindsEveryFlip: a flip of any bit is found where it is, costs at
// most the block it hits, and readers see what Inspect says they see.
func TestInspectFindsEveryFlip(t *testing.T) {
	t.Parallel()
	for name, sealed := range map[string]bool{"crashed": false, "sealed": true} {
		t.Run(name, func(t *testing.T) {
			file, items, ends := smallSegment(t, sealed)
			last := ends[len(ends)-2] // where the only frame begins that nothing proves durable
			for off := 0; off < len(file); off++ {
				if off%53 != 0 && off%format.PageSize > 140 {
					continue // payloads and padding are all alike
				}
				bad := bytes.Clone(file)
				bad[off] ^= 1 << (off % 8)
				what := fmt.Sprintf("flip at %d", off)
				v := inspect(t, bad, true)
				if !slices.ContainsFunc(v.Damage, func(d Damage) bool { return d.Off <= int64(off) && int64(off) < d.Off+d.Len }) {
					t.Fatalf("%s: not found where it is: %+v", what, v.Damage)
				}
				wantReaders(t, what, v, bad)
				wantReaders(t, what, inspect(t, bad, false), bad)
				if bad[off] != file[off] && v.State == StateClosed && off >= format.PageSize {
					t.Fatalf("%s: closed", what)
				}
				lost := 0
				for _, it := range items {
					if !usable(v)[it.Info.ID] {
						lost++
					}
				}
				if limit := 1; lost > limit {
					t.Fatalf("%s: %d blocks are lost, frame starts %v, last %d: %+v", what, lost, ends, last, v.Damage)
				}
			}
		})
	}
}

// TestInspectAgreesWithReaders over cuts, zeroed stretches and many flips.
func TestInspectAgreesWithReaders(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, sealed := range []bool{false, true} {
		file, _, _ := smallSegment(t, sealed)
		for round := range 400 {
			bad := bytes.Clone(file)
			switch round % 3 {
			case 0:
				bad = bad[:rng.IntN(len(bad))]
			case 1:
				from := rng.IntN(len(bad))
				clear(bad[from:min(len(bad), from+rng.IntN(3*format.PageSize))])
			}
			for range rng.IntN(6) {
				if len(bad) > 0 {
					bad[rng.IntN(len(bad))] ^= 1 << rng.IntN(8)
				}
			}
			what := fmt.Sprintf("sealed %v, round %d", sealed, round)
			for _, payloads := range []bool{false, true} {
				v := inspect(t, bad, payloads)
				wantReaders(t, what, v, bad)
				if !payloads || bytes.Equal(bad, file) {
					continue
				}
				if len(v.Damage) == 0 && !slices.Contains(cleanCuts(t), len(bad)) {
					t.Fatalf("%s: nothing found in %d bytes of %d", what, len(bad), len(file))
				}
			}
		}
	}
}

// cleanCuts are the lengths at which a crash leaves only whole frames.
func cleanCuts(t *testing.T) []int {
	_, _, ends := smallSegment(t, false)
	cuts := []int{format.PageSize}
	for _, e := range ends {
		cuts = append(cuts, int(e))
	}
	return cuts
}

// TestInspectBridgesOnlyProvenGaps: what follows a bad frame is saved when the
// file shows that the bad one was durable, and is left when a crash explains it.
func TestInspectBridgesOnlyProvenGaps(t *testing.T) {
	file, items, ends := smallSegment(t, false)
	start := func(frame int) int64 {
		if frame == 0 {
			return format.PageSize
		}
		return ends[frame-1]
	}
	for frame := range items {
		bad := bytes.Clone(file)
		bad[start(frame)+40] ^= 1
		v := inspect(t, bad, false)
		want := len(items) - 1
		if frame == len(items)-1 {
			if v.State != StateTorn || v.Damage[0].Kind != BadTail {
				t.Errorf("the last frame: %+v", v)
			}
		} else if v.Damage[0].Kind != BadFrame || v.Damage[0].Off != start(frame) || v.Damage[0].Len != start(frame+1)-start(frame) {
			t.Errorf("frame %d: %+v", frame, v.Damage)
		}
		if n := len(usable(v)); n != want {
			t.Errorf("frame %d: %d blocks can be saved, want %d", frame, n, want)
		}
	}
	// With synced at 0 everywhere any hole may be a crash's.
	unproven := bytes.Clone(file)
	for frame := range items {
		p := unproven[start(frame):]
		head := format.LE.Uint32(p[8:])
		format.LE.PutUint64(p[48:], 0)
		format.LE.PutUint32(p[60:], format.FrameCRC(p[:head]))
	}
	if v := inspect(t, unproven, true); len(v.Damage) != 0 {
		t.Fatalf("%+v", v.Damage)
	}
	unproven[start(2)+40] ^= 1
	v := inspect(t, unproven, true)
	if len(usable(v)) != 2 || len(v.Damage) != 1 || v.Damage[0].Kind != BadTail || v.Damage[0].Off != start(2) {
		t.Errorf("unproven gap: %d blocks, %+v", len(usable(v)), v.Damage)
	}
}

func TestInspectJudgesIdentityAndVersion(t *testing.T) {
	file, _, _ := smallSegment(t, true)
	v, err := Inspect(&memFile{file}, format.FileID{Rank: 3, Incarnation: 1, Number: 4}, InspectOptions{Buf: make([]byte, 64<<10)})
	if err != nil || v.State != StateClosed || len(v.Entries) != 0 || v.Damage[0].Kind != BadIdentity {
		t.Errorf("under a wrong name: %+v, %v", v, err)
	}
	newer := bytes.Clone(file)
	newer[8] = 2
	format.LE.PutUint32(newer[4092:], block.CRC(newer[:4092]))
	if v := inspect(t, newer, true); v.State != StateClosed || len(v.Entries) != 0 || v.Damage[0].Kind != BadVersion {
		t.Errorf("of a newer version: %+v", v)
	}
	_, err = Inspect(&failing{memFile{file}}, smallID, InspectOptions{Buf: make([]byte, 64<<10)})
	wantErr(t, "a file system that fails", err, errBroken)
}

var errBroken = errors.New("broken")

// failing fails to read behind the first page.
type failing struct{ memFile }

func (f *failing) Pread(p []byte, off int64) (int, error) {
	if off > 0 {
		return 0, errBroken
	}
	return f.memFile.Pread(p, off)
}

// TestInspectComparesFooterAndFrames: both have valid checksums and disagree.
func TestInspectComparesFooterAndFrames(t *testing.T) {
	file, items, ends := smallSegment(t, true)
	foot := ends[len(ends)-1]
	bad := bytes.Clone(file)
	name := foot + format.FooterHeadSize + format.BlockEntrySize // of the first block
	bad[name+40] ^= 1                                            // seq
	format.LE.PutUint32(bad[len(bad)-16:], block.CRC(bad[foot:len(bad)-format.TrailerSize]))
	format.LE.PutUint32(bad[len(bad)-12:], block.CRC(bad[len(bad)-format.TrailerSize:len(bad)-12]))
	v := inspect(t, bad, false)
	if len(v.Damage) != 1 || v.Damage[0].Kind != BadMatch || v.State != StateSealed || len(usable(v)) != len(items) {
		t.Errorf("%+v", v.Damage)
	}
	wantReaders(t, "mismatch", v, bad)
}

// TestInspectFindsOverlaps: no writer lets two blocks share bytes.
func TestInspectFindsOverlaps(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	a, b := testItem(1, 5000), testItem(1, 5000)
	b.Info.ID[0] ^= 1
	put(t, s, a, b)
	file := readFile(t, dir, segmentPath(1, 0))
	second := file[format.PageSize+format.FrameHeaderSize+format.BlockEntrySize:]
	format.LE.PutUint64(second[56:], format.LE.Uint64(file[format.PageSize+format.FrameHeaderSize+56:]))
	fixFrame(file, format.PageSize)
	v, err := Inspect(&memFile{file}, smallID, InspectOptions{Payloads: true, Buf: make([]byte, 64<<10)})
	if err != nil || !slices.ContainsFunc(v.Damage, func(d Damage) bool { return d.Kind == BadEntry && d.ID == b.Info.ID }) || usable(v)[b.Info.ID] || !usable(v)[a.Info.ID] {
		t.Errorf("%v, %+v", err, v.Damage)
	}
}

func TestInspectFindsWrongIDs(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.Compress = true
	s := openStore(t, o)
	good, liar, noise := testItem(1, 5000), testItem(2, 5000), testItem(3, 5000) // the last one is stored as it is
	for i, it := range []*tiers.Item{&liar, &noise} {
		it.Info.ID = block.Sum(block.Bits256, fmt.Append(nil, "something else ", i))
	}
	put(t, s, good, liar)
	put(t, s, noise)
	closeStore(t, s)
	file := readFile(t, dir, segmentPath(1, 0))
	v := inspect(t, file, true)
	if len(v.Damage) != 2 || v.Damage[0].Kind != BadID || v.Damage[0].ID != liar.Info.ID || v.Damage[1].ID != noise.Info.ID || !usable(v)[good.Info.ID] {
		t.Errorf("%+v", v.Damage)
	}
}

// redraft writes the usable entries of a file as format.Drafts lays them out.
func redraft(t testing.TB, file []byte, v *View, id format.FileID) []byte {
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
	from, err := NewCopier(&memFile{file}, make([]byte, 64<<10), nil)
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

func TestDraftsAreSegments(t *testing.T) {
	file, items, _ := smallSegment(t, false)
	copied := redraft(t, file, inspect(t, file, true), smallID)
	v := inspect(t, copied, true)
	if v.State != StateSealed || len(v.Damage) != 0 || len(usable(v)) != len(items) {
		t.Fatalf("%+v", v.Damage)
	}
	strip := func(entries []Entry) []Entry {
		out := slices.Clone(entries)
		for i := range out {
			out[i].At, out[i].Off = 0, 0
		}
		return out
	}
	if got, want := strip(v.Entries), strip(inspect(t, file, true).Entries); !reflect.DeepEqual(got, want) {
		t.Errorf("entries\n%+v\nwant\n%+v", got, want)
	}
	s := recoverFrom(t, copied)
	wantBytes(t, s, items...)
	if len(s.names) != len(items) {
		t.Errorf("%d names", len(s.names))
	}
}

func TestDraftsSplit(t *testing.T) {
	var entries []format.Entry
	const size = 200 << 20
	for i := range 12 {
		id := block.Sum(block.Bits128, []byte{byte(i)})
		entries = append(entries, format.Entry{Kind: format.KindBlock, Info: block.Info{ID: id, Size: size}, Stored: size},
			format.Entry{Kind: format.KindName, Info: block.Info{ID: id}, Name: testName(fmt.Sprint(i), 1)})
	}
	drafts := format.Drafts(smallID, format.Header{}, entries)
	blocks := 0
	for i, d := range drafts {
		if d.Size() > format.DraftBytes || d.ID.Number != uint64(i) {
			t.Errorf("draft %d: %d bytes, number %d", i, d.Size(), d.ID.Number)
		}
		blocks += d.Blocks
	}
	if len(drafts) != 3 || blocks != 12 {
		t.Errorf("%d drafts with %d blocks", len(drafts), blocks)
	}
}

func transfer(p []byte, size int64, as format.FileID) ([]byte, *Transfer, error) {
	a, err := NewTransfer(bytes.NewReader(p), size, InspectOptions{IDs: true, Buf: make([]byte, 64<<10)})
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	footer, err := a.Copy(&out, as)
	return append(out.Bytes(), footer...), a, err
}

func TestTransferKeepsEverythingButTheIdentity(t *testing.T) {
	file, items, _ := smallSegment(t, false)
	stream := redraft(t, file, inspect(t, file, true), format.FileID{Rank: 77, Incarnation: 5, Number: 9})
	got, a, err := transfer(stream, int64(len(stream)), smallID)
	if err != nil {
		t.Fatal(err)
	}
	if a.From != (format.FileID{Rank: 77, Incarnation: 5, Number: 9}) || a.Blocks != len(items) || a.Names != len(items) {
		t.Errorf("%+v", a)
	}
	v := inspect(t, got, true)
	if v.State != StateSealed || len(v.Damage) != 0 {
		t.Fatalf("%v, %+v", v.State, v.Damage)
	}
	s := recoverFrom(t, got)
	wantBytes(t, s, items...)
}

// TestTransferRefusesEveryFlip and every cut.
func TestTransferRefusesEveryFlip(t *testing.T) {
	file, _, _ := smallSegment(t, false)
	stream := redraft(t, file, inspect(t, file, true), smallID)
	for off := 0; off < len(stream); off++ {
		if off%53 != 0 && off%format.PageSize > 140 {
			continue
		}
		bad := bytes.Clone(stream)
		bad[off] ^= 1 << (off % 8)
		if _, _, err := transfer(bad, int64(len(bad)), smallID); !errors.Is(err, format.ErrBadFormat) && !errors.Is(err, tiers.ErrCorrupt) {
			t.Fatalf("flip at %d: %v", off, err)
		}
	}
	for cut := 0; cut < len(stream); cut += 512 {
		if _, _, err := transfer(stream[:cut], int64(len(stream)), smallID); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if _, _, err := transfer(stream[:cut], int64(cut), smallID); !errors.Is(err, format.ErrBadFormat) {
			t.Fatalf("cut at %d with its size: %v", cut, err)
		}
	}
}

func FuzzInspect(f *testing.F) {
	seed, err := goldenBytes()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, true)
	f.Add(seed[:len(seed)-format.PageSize], false)
	f.Fuzz(func(t *testing.T, p []byte, seal bool) {
		if len(p) >= format.PageSize { // let mutations reach what lies behind the checksums
			p = bytes.Clone(p)
			format.EncodeHeader(p, smallID, format.Header{Created: time.Unix(0, 0)})
			fixFrame(p, format.PageSize)
			if t := p[len(p)-format.TrailerSize:]; seal && string(t[24:]) == format.TrailerMagic {
				format.LE.PutUint32(t[20:], block.CRC(t[:20]))
			}
		}
		for _, payloads := range []bool{false, true} {
			v := inspect(t, p, payloads)
			wantReaders(t, "fuzz", v, p)
			if payloads && len(usable(v)) > 0 {
				copied := redraft(t, p, v, smallID)
				if again := inspect(t, copied, true); len(again.Damage) != 0 || len(usable(again)) != len(usable(v)) {
					t.Fatalf("repaired: %+v", again.Damage)
				}
			}
		}
	})
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

func FuzzTransfer(f *testing.F) {
	seed, err := goldenBytes()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= format.PageSize {
			p = bytes.Clone(p)
			format.EncodeHeader(p, smallID, format.Header{Created: time.Unix(0, 0)})
			fixFrame(p, format.PageSize)
		}
		got, a, err := transfer(p, int64(len(p)), smallID)
		if err != nil {
			if !errors.Is(err, format.ErrBadFormat) && !errors.Is(err, tiers.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if v := inspect(t, got, true); len(v.Damage) != 0 || v.State != StateSealed || a.Blocks < len(usable(v)) {
			t.Fatalf("%v, %+v", v.State, v.Damage)
		}
	})
}

// goldenBytes makes a small sealed segment without a store.
func goldenBytes() ([]byte, error) {
	coder, err := codec.New(codec.Options{})
	if err != nil {
		return nil, err
	}
	var entries []format.Entry
	payloads := map[block.ID][]byte{}
	for i, p := range [][]byte{bytes.Repeat([]byte("payload "), 700), []byte("inline"), nil, tensorItem(1, 9000).Data} {
		info := block.Info{ID: block.Sum(block.Bits128, p), Size: int64(len(p)), CRC: block.CRC(p)}
		e := format.Entry{Kind: format.KindBlock, Info: info, Stored: info.Size, StoredCRC: info.CRC}
		if i == 3 {
			room := make([]byte, len(p))
			n, err := coder.EncodeAs(codec.Shuffle2, codec.Huffman, room, p)
			if err != nil {
				return nil, err
			}
			p = room[:n]
			e.Stored, e.StoredCRC, e.Codec = int64(n), block.CRC(p), codec.Shuffle2
		}
		payloads[info.ID] = p
		entries = append(entries, e, format.Entry{Kind: format.KindName, Info: block.Info{ID: info.ID}, Name: testName(fmt.Sprint(len(p)), 4)})
	}
	entries = append(entries, format.Entry{Kind: format.KindDrop, Name: block.Name{Namespace: "ns", Key: "gone", Seq: 5}})
	var out bytes.Buffer
	footer, err := format.Drafts(smallID, format.Header{}, entries)[0].WriteFrames(&out, func(e *format.Entry, w io.Writer) error {
		_, err := w.Write(payloads[e.Info.ID])
		return err
	})
	return append(out.Bytes(), footer...), err
}
