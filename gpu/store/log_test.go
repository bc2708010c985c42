package store

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var goldenHead = header{magic: logMagic, pool: 0x1122334455667788, generation: 3, layout: layout{objects: 4, bytes: 131072, dirs: 2, each: 64}}

func ignore([]byte) {}

func goldenLog() []byte {
	first := goldenHead.encode()
	log := slices.Clone(first)
	for i, r := range []record{
		{kind: kindNote, note: []byte("note")},
		{kind: kindRegister, file: 7, id: ids(0, 1)[0], crcs: []uint32{1, 2, 3, 0xfffffffe}},
		{kind: kindEnd, file: 1},
		{kind: kindRegister, file: 8, id: ids(1, 1)[0], crcs: []uint32{5, 6, 7, 8}},
		{kind: kindRemove, file: 7, id: ids(0, 1)[0]},
		{kind: kindRemove, file: 8, id: ids(5, 1)[0]}, // another block's: it means nothing
	} {
		log = appendRecord(log, headerCRC(first), uint64(i+1), r)
	}
	return log
}

// TestGolden: the bytes of both kinds of files are a promise.
func TestGolden(t *testing.T) {
	container := goldenHead
	container.magic, container.generation, container.number = containerMagic, 0, 5
	for name, got := range map[string][]byte{"log-v2.hex": goldenLog(), "container-v1.hex": container.encode()} {
		want := golden(t, name)
		got = bytes.Join([][]byte{got[:64], got[page-4:]}, nil) // between them are zeros
		if !bytes.Equal(got, want) {
			t.Errorf("%s\n%x\nwant\n%x", name, got, want)
		}
	}
	head := goldenHead.encode()
	if !bytes.Equal(head[64:page-4], make([]byte, page-4-64)) {
		t.Error("the rest of a header is not zero")
	}
	h, err := decodeHeader(container.encode(), containerMagic)
	if err != nil || h != container {
		t.Errorf("%v, %+v", err, h)
	}
	if _, err := decodeHeader(container.encode(), logMagic); !errors.Is(err, errFormat) {
		t.Errorf("a container for a log: %v", err)
	}
	v1 := golden(t, "log-v1.hex")
	v1 = slices.Concat(v1[:64], make([]byte, page-4-64), v1[64:])
	for what, log := range map[string][]byte{"note": goldenLog(), "": v1} {
		var notes string
		h, files, err := replay(bytes.NewReader(log[page:]), log[:page], func(p []byte) { notes += string(p) })
		if err != nil || h != goldenHead || notes != what || len(files) != 1 || files[8].id != ids(1, 1)[0] || !slices.Equal(files[8].crcs, []uint32{5, 6, 7, 8}) {
			t.Errorf("%v, %+v, %+v, %q", err, h, files, notes)
		}
	}
}

// golden reads bytes in hexadecimal.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// TestLogsAreApart: records of one log are none of another, though their numbers follow
// each other.
func TestLogsAreApart(t *testing.T) {
	other := goldenHead
	other.generation++
	first := other.encode()
	log := append(appendRecord(appendRecord(slices.Clone(first), headerCRC(first), 1, record{kind: kindNote}), headerCRC(first), 2, record{kind: kindEnd}), goldenLog()[page+headBytes+4+recordBytes+16+recordBytes:]...)
	if _, files, err := replay(bytes.NewReader(log[page:]), log[:page], ignore); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", err, files)
	}
}

// FuzzReplay: no bytes are read as something that was not written: what is accepted is,
// written anew, accepted alike.
func FuzzReplay(f *testing.F) {
	f.Add(goldenLog())
	f.Add(goldenLog()[:page+100])
	f.Fuzz(func(t *testing.T, log []byte) {
		if len(log) < page {
			return
		}
		var notes [][]byte
		h, files, err := replay(bytes.NewReader(log[page:]), log[:page], func(p []byte) { notes = append(notes, bytes.Clone(p)) })
		if err != nil {
			if !errors.Is(err, errFormat) {
				t.Fatal(err)
			}
			return
		}
		first := h.encode()
		again, seq := slices.Clone(first), uint64(0)
		for file, r := range files {
			if r.file != file || len(r.crcs) != h.layout.objects {
				t.Fatalf("file %d: %+v", file, r)
			}
			seq++
			again = appendRecord(again, headerCRC(first), seq, r)
		}
		for _, n := range notes {
			seq++
			again = appendRecord(again, headerCRC(first), seq, record{kind: kindNote, note: n})
		}
		again = appendRecord(again, headerCRC(first), seq+1, record{kind: kindEnd, file: uint32(len(files))})
		_, same, err := replay(bytes.NewReader(again[page:]), again[:page], func(p []byte) {
			if len(notes) == 0 || !bytes.Equal(notes[0], p) {
				t.Fatalf("note %x", p)
			}
			notes = notes[1:]
		})
		if err != nil || len(same) != len(files) || len(notes) > 0 {
			t.Fatalf("%v: %d of %d, %d notes are missing", err, len(same), len(files), len(notes))
		}
	})
}
