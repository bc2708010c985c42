package segfile_test

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
	"cascadekv/internal/testing/segmenttest"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// readers returns what Recover takes of a file.
func readers(t testing.TB, file []byte) []format.Entry {
	t.Helper()
	sc := format.Scanner{File: &segmenttest.File{Bytes: file}}
	entries, err := sc.Entries(segmenttest.ID)
	if err != nil && !errors.Is(err, format.ErrBadFormat) {
		t.Fatal(err)
	}
	return entries
}

// wantReaders compares the entries that v calls visible with those that
// Recover takes.
func wantReaders(t testing.TB, what string, v *segfile.View, file []byte) {
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

func TestInspectWholeSegments(t *testing.T) {
	for name, sealed := range map[string]bool{"crashed": false, "sealed": true} {
		t.Run(name, func(t *testing.T) {
			file, items, _ := smallSegment(t, sealed)
			for _, payloads := range []bool{false, true} {
				v := segmenttest.Inspect(t, file, payloads)
				want := segfile.StateOpen
				if sealed {
					want = segfile.StateSealed
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
				if off%53 != 0 && off%format.PageSize > 240 {
					continue // payloads and padding are all alike
				}
				bad := bytes.Clone(file)
				bad[off] ^= 1 << (off % 8)
				what := fmt.Sprintf("flip at %d", off)
				v := segmenttest.Inspect(t, bad, true)
				if !slices.ContainsFunc(v.Damage, func(d segfile.Damage) bool { return d.Off <= int64(off) && int64(off) < d.Off+d.Len }) {
					t.Fatalf("%s: not found where it is: %+v", what, v.Damage)
				}
				wantReaders(t, what, v, bad)
				wantReaders(t, what, segmenttest.Inspect(t, bad, false), bad)
				if bad[off] != file[off] && v.State == segfile.StateClosed && off >= format.PageSize {
					t.Fatalf("%s: closed", what)
				}
				lost := 0
				for _, it := range items {
					if !segmenttest.Usable(v)[it.Info.ID] {
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
				v := segmenttest.Inspect(t, bad, payloads)
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
		v := segmenttest.Inspect(t, bad, false)
		want := len(items) - 1
		if frame == len(items)-1 {
			if v.State != segfile.StateTorn || v.Damage[0].Kind != segfile.BadTail {
				t.Errorf("the last frame: %+v", v)
			}
		} else if v.Damage[0].Kind != segfile.BadFrame || v.Damage[0].Off != start(frame) || v.Damage[0].Len != start(frame+1)-start(frame) {
			t.Errorf("frame %d: %+v", frame, v.Damage)
		}
		if n := len(segmenttest.Usable(v)); n != want {
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
	if v := segmenttest.Inspect(t, unproven, true); len(v.Damage) != 0 {
		t.Fatalf("%+v", v.Damage)
	}
	unproven[start(2)+40] ^= 1
	v := segmenttest.Inspect(t, unproven, true)
	if len(segmenttest.Usable(v)) != 2 || len(v.Damage) != 1 || v.Damage[0].Kind != segfile.BadTail || v.Damage[0].Off != start(2) {
		t.Errorf("unproven gap: %d blocks, %+v", len(segmenttest.Usable(v)), v.Damage)
	}
}

func TestInspectJudgesIdentityAndVersion(t *testing.T) {
	file, _, _ := smallSegment(t, true)
	v, err := segfile.Inspect(&segmenttest.File{Bytes: file}, format.FileID{Rank: 3, Incarnation: 1, Number: 4}, segfile.InspectOptions{Buf: make([]byte, 64<<10)})
	if err != nil || v.State != segfile.StateClosed || len(v.Entries) != 0 || v.Damage[0].Kind != segfile.BadIdentity {
		t.Errorf("under a wrong name: %+v, %v", v, err)
	}
	newer := bytes.Clone(file)
	newer[8] = format.Version + 1
	format.LE.PutUint32(newer[4092:], block.CRC(newer[:4092]))
	if v := segmenttest.Inspect(t, newer, true); v.State != segfile.StateClosed || len(v.Entries) != 0 || v.Damage[0].Kind != segfile.BadVersion {
		t.Errorf("of a newer version: %+v", v)
	}
	_, err = segfile.Inspect(&failing{segmenttest.File{Bytes: file}}, segmenttest.ID, segfile.InspectOptions{Buf: make([]byte, 64<<10)})
	wantErr(t, "a file system that fails", err, errBroken)
}

var errBroken = errors.New("broken")

// failing fails to read behind the first page.
type failing struct{ segmenttest.File }

func (f *failing) Pread(p []byte, off int64) (int, error) {
	if off > 0 {
		return 0, errBroken
	}
	return f.File.Pread(p, off)
}

// TestInspectComparesFooterAndFrames: both have valid checksums and disagree.
func TestInspectComparesFooterAndFrames(t *testing.T) {
	file, items, ends := smallSegment(t, true)
	foot := ends[len(ends)-1]
	bad := bytes.Clone(file)
	name := foot + format.HeadSize + format.BlockEntrySize // of the first block
	bad[name+40] ^= 1                                      // seq
	format.LE.PutUint32(bad[len(bad)-16:], block.CRC(bad[foot:len(bad)-format.TrailerSize]))
	format.LE.PutUint32(bad[len(bad)-12:], block.CRC(bad[len(bad)-format.TrailerSize:len(bad)-12]))
	v := segmenttest.Inspect(t, bad, false)
	if len(v.Damage) != 1 || v.Damage[0].Kind != segfile.BadMatch || v.State != segfile.StateSealed || len(segmenttest.Usable(v)) != len(items) {
		t.Errorf("%+v", v.Damage)
	}
	wantReaders(t, "mismatch", v, bad)
}

// TestInspectFindsOverlaps: no writer lets two blocks share bytes.
func TestInspectFindsOverlaps(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	a, b := segmenttest.Item(1, 5000), segmenttest.Item(1, 5000)
	b.Info.ID[0] ^= 1
	put(t, s, a, b)
	file := readFile(t, dir, segmentPath(1, 0))
	second := file[format.PageSize+format.HeadSize+format.BlockEntrySize:]
	format.LE.PutUint64(second[56:], format.LE.Uint64(file[format.PageSize+format.HeadSize+56:]))
	segmenttest.FixFrame(file, format.PageSize)
	v, err := segfile.Inspect(&segmenttest.File{Bytes: file}, segmenttest.ID, segfile.InspectOptions{Payloads: true, Buf: make([]byte, 64<<10)})
	if err != nil || !slices.ContainsFunc(v.Damage, func(d segfile.Damage) bool { return d.Kind == segfile.BadEntry && d.ID == b.Info.ID }) || segmenttest.Usable(v)[b.Info.ID] || !segmenttest.Usable(v)[a.Info.ID] {
		t.Errorf("%v, %+v", err, v.Damage)
	}
}

func TestInspectFindsWrongIDs(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.Compress = true
	s := openStore(t, o)
	good, liar, noise := segmenttest.Item(1, 5000), segmenttest.Item(2, 5000), segmenttest.Item(3, 5000) // the last one is stored as it is
	for i, it := range []*tiers.Item{&liar, &noise} {
		it.Info.ID = block.Sum(block.Bits256, fmt.Append(nil, "something else ", i))
	}
	put(t, s, good, liar)
	put(t, s, noise)
	closeStore(t, s)
	file := readFile(t, dir, segmentPath(1, 0))
	v := segmenttest.Inspect(t, file, true)
	if len(v.Damage) != 2 || v.Damage[0].Kind != segfile.BadID || v.Damage[0].ID != liar.Info.ID || v.Damage[1].ID != noise.Info.ID || !segmenttest.Usable(v)[good.Info.ID] {
		t.Errorf("%+v", v.Damage)
	}
}

func TestDraftsAreSegments(t *testing.T) {
	file, items, _ := smallSegment(t, false)
	copied := segmenttest.Redraft(t, file, segmenttest.Inspect(t, file, true), segmenttest.ID)
	v := segmenttest.Inspect(t, copied, true)
	if v.State != segfile.StateSealed || len(v.Damage) != 0 || len(segmenttest.Usable(v)) != len(items) {
		t.Fatalf("%+v", v.Damage)
	}
	strip := func(entries []segfile.Entry) []segfile.Entry {
		out := slices.Clone(entries)
		for i := range out {
			out[i].At, out[i].Off = 0, 0
		}
		return out
	}
	if got, want := strip(v.Entries), strip(segmenttest.Inspect(t, file, true).Entries); !reflect.DeepEqual(got, want) {
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
			format.Entry{Kind: format.KindName, Info: block.Info{ID: id}, Name: segmenttest.Name(fmt.Sprint(i), 1)})
	}
	drafts := format.Drafts(segmenttest.ID, format.Header{}, entries)
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

func TestTransferKeepsEverythingButTheIdentity(t *testing.T) {
	file, items, _ := smallSegment(t, false)
	stream := segmenttest.Redraft(t, file, segmenttest.Inspect(t, file, true), format.FileID{Rank: 77, Incarnation: 5, Number: 9})
	got, a, err := segmenttest.Transfer(stream, int64(len(stream)), segmenttest.ID)
	if err != nil {
		t.Fatal(err)
	}
	if a.From != (format.FileID{Rank: 77, Incarnation: 5, Number: 9}) || a.Blocks != len(items) || a.Names != len(items) {
		t.Errorf("%+v", a)
	}
	v := segmenttest.Inspect(t, got, true)
	if v.State != segfile.StateSealed || len(v.Damage) != 0 {
		t.Fatalf("%v, %+v", v.State, v.Damage)
	}
	s := recoverFrom(t, got)
	wantBytes(t, s, items...)
}

// TestTransferRefusesEveryFlip and every cut.
func TestTransferRefusesEveryFlip(t *testing.T) {
	file, _, _ := smallSegment(t, false)
	stream := segmenttest.Redraft(t, file, segmenttest.Inspect(t, file, true), segmenttest.ID)
	for off := 0; off < len(stream); off++ {
		if off%53 != 0 && off%format.PageSize > 240 {
			continue
		}
		bad := bytes.Clone(stream)
		bad[off] ^= 1 << (off % 8)
		if _, _, err := segmenttest.Transfer(bad, int64(len(bad)), segmenttest.ID); !errors.Is(err, format.ErrBadFormat) && !errors.Is(err, tiers.ErrCorrupt) {
			t.Fatalf("flip at %d: %v", off, err)
		}
	}
	for cut := 0; cut < len(stream); cut += 512 {
		if _, _, err := segmenttest.Transfer(stream[:cut], int64(len(stream)), segmenttest.ID); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if _, _, err := segmenttest.Transfer(stream[:cut], int64(cut), segmenttest.ID); !errors.Is(err, format.ErrBadFormat) {
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
	f.Add(segmenttest.Version1(f), true)
	f.Fuzz(func(t *testing.T, p []byte, seal bool) {
		if len(p) >= format.PageSize { // let mutations reach what lies behind the checksums
			p = bytes.Clone(p)
			format.EncodeHeader(p, segmenttest.ID, format.Header{Version: uint16(p[8]) & 1, Created: time.Unix(0, 0)})
			segmenttest.FixFrame(p, format.PageSize)
			if t := p[len(p)-format.TrailerSize:]; seal && string(t[24:]) == format.TrailerMagic {
				format.LE.PutUint32(t[20:], block.CRC(t[:20]))
			}
		}
		for _, payloads := range []bool{false, true} {
			v := segmenttest.Inspect(t, p, payloads)
			wantReaders(t, "fuzz", v, p)
			if payloads && len(segmenttest.Usable(v)) > 0 {
				copied := segmenttest.Redraft(t, p, v, segmenttest.ID)
				if again := segmenttest.Inspect(t, copied, true); len(again.Damage) != 0 || len(segmenttest.Usable(again)) != len(segmenttest.Usable(v)) {
					t.Fatalf("repaired: %+v", again.Damage)
				}
			}
		}
	})
}

func FuzzTransfer(f *testing.F) {
	seed, err := goldenBytes()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(segmenttest.Version1(f))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= format.PageSize {
			p = bytes.Clone(p)
			format.EncodeHeader(p, segmenttest.ID, format.Header{Version: uint16(p[8]) & 1, Created: time.Unix(0, 0)})
			segmenttest.FixFrame(p, format.PageSize)
		}
		got, a, err := segmenttest.Transfer(p, int64(len(p)), segmenttest.ID)
		if err != nil {
			if !errors.Is(err, format.ErrBadFormat) && !errors.Is(err, tiers.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if v := segmenttest.Inspect(t, got, true); len(v.Damage) != 0 || v.State != segfile.StateSealed || a.Blocks < len(segmenttest.Usable(v)) {
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
	for i, p := range [][]byte{bytes.Repeat([]byte("payload "), 700), []byte("inline"), nil, segmenttest.Tensor(1, 9000).Data} {
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
		entries = append(entries, e, format.Entry{Kind: format.KindName, Info: block.Info{ID: info.ID}, Name: segmenttest.Name(fmt.Sprint(len(p)), 4)})
	}
	entries = append(entries, format.Entry{Kind: format.KindDrop, Name: block.Name{Namespace: "ns", Key: "gone", Seq: 5}},
		format.Entry{Kind: format.KindLayout, Name: block.Name{Namespace: "ns", Seq: 6}, Layout: &block.Layout{Bytes: 9000, KeyBytes: 4500, DType: "bf16"}})
	var out bytes.Buffer
	footer, err := format.Drafts(segmenttest.ID, format.Header{}, entries)[0].WriteFrames(&out, func(e *format.Entry, w io.Writer) error {
		_, err := w.Write(payloads[e.Info.ID])
		return err
	})
	return append(out.Bytes(), footer...), err
}
