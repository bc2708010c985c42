package crc32c

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// The check value of CRC-32C in the catalogue of parametrised CRC algorithms.
func TestCheckValue(t *testing.T) {
	if got := Checksum([]byte("123456789")); got != 0xe3069283 {
		t.Fatalf("got %08x", got)
	}
}

// eachWay runs a test with all registers that this CPU folds in: those without
// AVX-512 use the narrower ones. None of these tests is parallel.
func eachWay(t *testing.T, run func(t *testing.T)) {
	t.Run("widest", run)
	if wide {
		wide = false
		defer func() { wide = true }()
		t.Run("256", run)
	}
}

func TestFoldingRunsHere(t *testing.T) { eachWay(t, testFoldingRunsHere) }

func testFoldingRunsHere(t *testing.T) {
	if !canFold {
		t.Skip("this CPU lacks VPCLMULQDQ: only the standard library's way is tested")
	}
	p := make([]byte, foldBlock)
	p[0] = 1
	if got, want := ^fold(^uint32(0), &p[0], 1, &folds), crc32.Checksum(p, table); got != want {
		t.Fatalf("one block: got %08x, want %08x", got, want)
	}
}

// Every length around the sizes where the way changes, at every alignment, in
// one piece and in two.
func TestSameAsStandardLibrary(t *testing.T) { eachWay(t, testSameAsStandardLibrary) }

func testSameAsStandardLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 70<<10)
	for i := range buf {
		buf[i] = byte(r.Uint32())
	}
	check := func(p []byte, cut int) {
		t.Helper()
		want := crc32.Checksum(p, table)
		if got := Update(Checksum(p[:cut]), p[cut:]); got != want {
			t.Fatalf("%d bytes cut at %d: got %08x, want %08x", len(p), cut, got, want)
		}
	}
	for n := range 3 * foldMin {
		check(buf[n%64:n%64+n], 0)
		check(buf[n%64:n%64+n], n/3)
	}
	for range 2000 {
		at := r.IntN(1 << 10)
		p := buf[at : at+r.IntN(len(buf)-at)]
		check(p, r.IntN(len(p)+1))
	}
}

// Every length around the sizes where the way changes, to and from every
// alignment, and nothing beside it is written.
func TestCopy(t *testing.T) { eachWay(t, testCopy) }

func testCopy(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	src := make([]byte, 3*copyStep)
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	dst := make([]byte, len(src)+256)
	check := func(from, to, n int) {
		t.Helper()
		clear(dst)
		p, crc := src[from:from+n], r.Uint32()
		if got, want := Copy(crc, dst[to:to+n], p), crc32.Update(crc, table, p); got != want {
			t.Fatalf("%d bytes from %d to %d: got %08x, want %08x", n, from, to, got, want)
		}
		if !bytes.Equal(dst[to:to+n], p) {
			t.Fatalf("%d bytes from %d to %d: not the same", n, from, to)
		}
		if clear(dst[to : to+n]); !bytes.Equal(dst, make([]byte, len(dst))) {
			t.Fatalf("%d bytes from %d to %d: written beside them", n, from, to)
		}
	}
	for n := range 600 {
		check(n%37, n%64, n)
		check(n%41, n%64, copyMin-300+n)
	}
	for at := range 64 {
		check(at, 63-at, copyMin+foldAlign+foldBlock)
	}
	for range 50 {
		n := r.IntN(len(src) - 64)
		check(r.IntN(64), r.IntN(64), n)
	}
}

// A single flipped bit anywhere changes the sum: no lane is lost in folding.
func TestEveryBitCounts(t *testing.T) { eachWay(t, testEveryBitCounts) }

func testEveryBitCounts(t *testing.T) {
	p := make([]byte, 5*foldBlock)
	whole := Checksum(p)
	for i := range p {
		for bit := range 8 {
			p[i] ^= 1 << bit
			if Checksum(p) == whole {
				t.Fatalf("bit %d of byte %d does not count", bit, i)
			}
			p[i] ^= 1 << bit
		}
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), []byte("x"), uint16(1))
	f.Fuzz(func(t *testing.T, crc uint32, seed []byte, times uint16) {
		if len(seed) == 0 {
			return
		}
		p := make([]byte, 0, len(seed)*int(times%64+1))
		for range times%64 + 1 {
			p = append(p, seed...)
		}
		eachWay(t, func(t *testing.T) {
			if got, want := Update(crc, p), crc32.Update(crc, table, p); got != want {
				t.Fatalf("%d bytes after %08x: got %08x, want %08x", len(p), crc, got, want)
			}
		})
	})
}

func BenchmarkChecksum(b *testing.B) {
	const size = 2 << 20
	memory := make([]byte, 256<<20)
	for i := range memory {
		memory[i] = byte(i)
	}
	for _, way := range []struct {
		name string
		sum  func([]byte) uint32
	}{
		{"here", Checksum},
		{"hash/crc32", func(p []byte) uint32 { return crc32.Checksum(p, table) }},
	} {
		for _, reach := range []struct {
			name string
			of   int
		}{{"cached", 256 << 10}, {"memory", len(memory)}} {
			b.Run(way.name+"/"+reach.name, func(b *testing.B) {
				n := min(size, reach.of)
				b.SetBytes(int64(n))
				for at := 0; b.Loop(); at = (at + n) % (reach.of - n + 1) {
					way.sum(memory[at : at+n])
				}
			})
		}
	}
}

// BenchmarkCopy copies from memory to memory that no cache holds: the ceiling
// is a copy without a checksum.
func BenchmarkCopy(b *testing.B) {
	const all = 128 << 20
	src, dst := make([]byte, all), make([]byte, all)
	for i := range src {
		src[i], dst[i] = byte(i), byte(i)
	}
	for _, size := range []int{4 << 10, 42 << 10, 256 << 10, 2 << 20, 8 << 20} {
		for _, way := range []struct {
			name string
			copy func(dst, src []byte)
		}{
			{"here", func(dst, src []byte) { Copy(0, dst, src) }},
			{"apart", func(dst, src []byte) { copy(dst, src); Checksum(dst) }},
			{"copy", func(dst, src []byte) { copy(dst, src) }},
		} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, way.name), func(b *testing.B) {
				b.SetBytes(int64(size))
				for at := 0; b.Loop(); at = (at + size) % (all - size + 1) &^ 63 {
					way.copy(dst[at:at+size], src[at:at+size])
				}
			})
		}
	}
}
