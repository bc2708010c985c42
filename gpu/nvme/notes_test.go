package nvme

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
)

var goldenStay = stay{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// goldenNotes are one of each kind.
var goldenNotes = map[string]note{
	"block": {kind: noteBlock, stay: goldenStay, info: block.Info{ID: block.ID{0xaa, 0xbb, 15: 0xcc, 31: 0xdd}, Size: 0x123456, CRC: 0x89abcdef}},
	"gone":  {kind: noteGone, stay: goldenStay},
	"name": {kind: noteName, stay: goldenStay, name: block.Name{Namespace: "ns", Key: "key", Parent: "up", Depth: 7, Prefix: true, Inferred: true,
		Seq: 0x1122334455667788, Expires: time.Unix(0, 0x0102030405060708)}},
	"name-short": {kind: noteName, stay: goldenStay, name: block.Name{Key: "k", Bound: true}},
	"unlink":     {kind: noteUnlink, name: block.Name{Namespace: "ns", Key: "key", Seq: 9}},
	"layout":     {kind: noteLayout, space: "ns", seq: 5, layout: block.Layout{Bytes: 5000, KeyBytes: 2500, Tokens: 16, Layers: 2, Heads: 8, HeadDim: 80, DType: "bf16"}},
}

// encode is the one encoding of a note.
func (n note) encode() []byte {
	switch n.kind {
	case noteBlock:
		return encodeBlock(n.stay, n.info)
	case noteGone:
		return encodeGone(n.stay)
	case noteName:
		return encodeName(n.stay, n.name)
	case noteUnlink:
		return encodeUnlink(n.name)
	}
	return encodeLayout(n.space, n.seq, n.layout)
}

// TestGolden: the bytes of notes, and the ids of parts, are a promise.
func TestGolden(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "notes-v1.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		name, digits, _ := strings.Cut(line, " ")
		if want[name], err = hex.DecodeString(digits); err != nil {
			t.Fatal(err)
		}
	}
	for name, n := range goldenNotes {
		got := n.encode()
		if !bytes.Equal(got, want[name]) {
			t.Errorf("%s %x", name, got)
		}
		if back, ok := decodeNote(want[name]); !ok || !reflect.DeepEqual(back, n) {
			t.Errorf("%s is %+v, %v, want %+v", name, back, ok, n)
		}
		for cut := range got {
			if _, ok := decodeNote(got[:cut]); ok {
				t.Errorf("%s, cut at %d, is a note", name, cut)
			}
		}
	}
	if id := goldenStay.part(3); !bytes.Equal(id[:], want["part-3"]) {
		t.Errorf("part-3 %x", id[:])
	}
}

// FuzzNote: what is read as a note has that one encoding, so nothing is read that was not written; and any notes in any order
// leave an index in which names and blocks fit each other.
func FuzzNote(f *testing.F) {
	for _, n := range goldenNotes {
		f.Add(n.encode(), n.encode())
		f.Add(goldenNotes["block"].encode(), n.encode())
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		x := newIndex()
		for _, p := range [][]byte{one, two, one} {
			n, ok := decodeNote(p)
			if !ok {
				continue
			}
			if again := n.encode(); !bytes.Equal(again, p) {
				t.Fatalf("%x is read as %+v, which is %x", p, n, again)
			}
			x.replay(n)
			x.check(t)
		}
	})
}

// check fails where two parts of an index do not fit each other.
func (x *index) check(t *testing.T) {
	t.Helper()
	payload, names := int64(0), 0
	for id, b := range x.blocks {
		if b.info.ID != id || b.gone || x.stays[b.stay.generation()] != b {
			t.Fatalf("block %v is %+v", id, b)
		}
		payload += b.info.Size
		for i, n := range b.names {
			if n.at != i || n.of != b || x.names[nameKey{n.Namespace, n.Key}] != n {
				t.Fatalf("name %d of block %v is %+v", i, id, n)
			}
			names++
		}
	}
	if payload != x.payload || names != len(x.names) || len(x.stays) != len(x.blocks) {
		t.Fatalf("%d of %d bytes, %d of %d names, %d of %d stays", x.payload, payload, names, len(x.names), len(x.stays), len(x.blocks))
	}
}
