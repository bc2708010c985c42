package trace

import (
	"bytes"
	"testing"
)

// The payload is part of what replayers of different builds agree on.
func TestPayloadGolden(t *testing.T) {
	got := make([]byte, 20)
	Fill(got, 42)
	want := golden
	if !bytes.Equal(got, want) {
		t.Errorf("payload of 42 starts with %#v, want %#v", got, want)
	}
}

func TestFillIsAPrefixOfOneStream(t *testing.T) {
	long := make([]byte, 257)
	Fill(long, 7)
	for n := range long {
		short := make([]byte, n)
		Fill(short, 7)
		if !bytes.Equal(short, long[:n]) {
			t.Fatalf("the first %d bytes depend on the length", n)
		}
		if wrong := Verify(short, 7); wrong != 0 {
			t.Fatalf("%d bytes of %d are said to be wrong", wrong, n)
		}
	}
}

func TestVerifyCountsWrongBytes(t *testing.T) {
	for _, size := range []int{1, 8, 31, 32, 33, 100, 4096} {
		block := make([]byte, size)
		Fill(block, 9)
		for i := range block {
			block[i] ^= 0x10
			if got := Verify(block, 9); got != 1 {
				t.Fatalf("size %d, byte %d flipped: %d wrong bytes, want 1", size, i, got)
			}
			block[i] ^= 0x10
		}
		for i := range block {
			block[i] = ^block[i]
		}
		if got := Verify(block, 9); got != size {
			t.Errorf("size %d, all flipped: %d wrong bytes", size, got)
		}
	}
}

func TestPayloadsDiffer(t *testing.T) {
	const ids, size = 1 << 16, 16
	seen := make(map[[size]byte]uint64, 2*ids)
	for i := range uint64(ids) {
		for _, id := range []uint64{i, i << 40} {
			var b [size]byte
			Fill(b[:], id)
			if other, ok := seen[b]; ok && other != id {
				t.Fatalf("ids %d and %d have the same payload", other, id)
			}
			seen[b] = id
		}
	}
}

func TestVerifyTellsIdsApart(t *testing.T) {
	block := make([]byte, 4096)
	Fill(block, 1)
	if wrong := Verify(block, 2); wrong < 4000 {
		t.Errorf("only %d of 4096 bytes differ between two ids, want nearly all", wrong)
	}
}

func TestPayloadDoesNotAllocate(t *testing.T) {
	block := make([]byte, 1001)
	if n := testing.AllocsPerRun(100, func() {
		Fill(block, 5)
		if Verify(block, 5) != 0 {
			t.Error("wrong bytes")
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkFill(b *testing.B) {
	block := make([]byte, 64<<10)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		Fill(block, 1)
	}
}

func BenchmarkVerify(b *testing.B) {
	block := make([]byte, 64<<10)
	Fill(block, 1)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		if Verify(block, 1) != 0 {
			b.Fatal("wrong bytes")
		}
	}
}
