package codec

import (
	"bytes"
	"encoding/hex"
	"os/exec"
	"testing"

	"cascadekv/internal/testing/testneed"
)

// TestFrameGolden fixes the frames that this package writes by itself: the
// header of a frame, of its block, of its literals, and no sequences.
func TestFrameGolden(t *testing.T) {
	w, err := newWorker()
	if err != nil {
		t.Fatal(err)
	}
	two := make([]byte, 1024) // ABBB ABBB …: 1 bit for each byte
	for i := range two {
		two[i] = 'B'
		if i%4 == 0 {
			two[i] = 'A'
		}
	}
	const head = "28b52ffd" + "a0" + "00040000"
	for name, c := range map[string]struct {
		plane []byte
		want  string
	}{
		"one value":  {make([]byte, 1024), head + "032000" + "00"},
		"two values": {two, head},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := w.frame(c.plane, Huffman)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(c.want); len(got)*2 < n || hex.EncodeToString(got)[:n] != c.want {
				t.Errorf("got %x, want %s…", got, c.want)
			}
		})
	}
	got, err := w.frame(two, Huffman)
	if err != nil {
		t.Fatal(err)
	}
	// Block: last, compressed, all that follows. Literals: compressed, four
	// streams, 1024 bytes from as many as lie between header and sequences.
	block := int(got[9]) | int(got[10])<<8 | int(got[11])<<16
	if block != 1|2<<1|(len(got)-12)<<3 {
		t.Errorf("block header %06x with %d bytes behind it", block, len(got)-12)
	}
	var literals uint64
	for i, b := range got[12:17] {
		literals |= uint64(b) << (8 * i)
	}
	if literals != 2|3<<2|1024<<4|uint64(len(got)-18)<<22 {
		t.Errorf("literals header %010x with %d bytes behind it", literals, len(got)-18)
	}
	if got[len(got)-1] != 0 {
		t.Errorf("the frame ends in %#x, not in 0 sequences", got[len(got)-1])
	}
}

// TestFramesAreZstd lets the reference implementation read them.
func TestFramesAreZstd(t *testing.T) {
	zstd := testneed.Program(t, "zstd", "make tools")
	w, err := newWorker()
	if err != nil {
		t.Fatal(err)
	}
	high := make([]byte, maxPlane)
	for i, b := range bf16Bytes(2 * maxPlane) {
		if i%2 == 1 {
			high[i/2] = b
		}
	}
	for name, c := range map[string]struct {
		plane  []byte
		effort Effort
	}{
		"exponents, Huffman":   {high, Huffman},
		"some exponents":       {high[:huffmanFloor], Huffman},
		"few exponents":        {high[:huffmanFloor-1], Huffman},
		"exponents, matches":   {high, Matches},
		"zeros, Huffman":       {make([]byte, maxPlane), Huffman},
		"repetitions, matches": {repeated(maxPlane), Matches},
	} {
		t.Run(name, func(t *testing.T) {
			frame, err := w.frame(c.plane, c.effort)
			if err != nil || frame == nil {
				t.Fatalf("no frame: %v", err)
			}
			cmd := exec.Command(zstd, "-dcq")
			cmd.Stdin = bytes.NewReader(frame)
			got, err := cmd.Output()
			if err != nil || !bytes.Equal(got, c.plane) {
				t.Errorf("zstd made %d bytes of %d, want %d: %v", len(got), len(frame), len(c.plane), err)
			}
		})
	}
}

func TestConstantPlanes(t *testing.T) {
	w, err := newWorker()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{huffmanFloor, 5000, maxPlane} {
		frame, err := w.frame(bytes.Repeat([]byte{0xab}, n), Huffman)
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := constant(frame, n); !ok || v != 0xab {
			t.Errorf("%d bytes: not seen in %x", n, frame)
		}
		if _, ok := constant(frame, n-1); ok {
			t.Errorf("%d bytes were taken for one less", n)
		}
		// Seen or left to zstd, the plane is the same.
		got, byZstd := make([]byte, n), make([]byte, n)
		out, err := w.decoder.DecodeAll(frame, byZstd[:0])
		if decodeFrame(w.decoder, got, frame) != nil || err != nil || !bytes.Equal(got, out) {
			t.Errorf("%d bytes: decoded to other bytes, %v", n, err)
		}
	}
}

func TestFrameOfNoiseIsNone(t *testing.T) {
	w, err := newWorker()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 100, huffmanFloor, maxPlane} {
		for _, e := range []Effort{Huffman, Matches} {
			if got, err := w.frame(randomBytes(n), e); got != nil || err != nil {
				t.Errorf("%d random bytes became a frame of %d, %v", n, len(got), err)
			}
		}
	}
}
