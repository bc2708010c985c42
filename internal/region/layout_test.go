package region

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func pairs(numbers ...uint64) (p []byte) {
	for _, n := range numbers {
		p = binary.LittleEndian.AppendUint64(p, n)
	}
	return p
}

func TestParseLayout(t *testing.T) {
	for name, x := range map[string]struct {
		bulk   []byte
		blocks int
		size   int64
		ok     bool
	}{
		"one":                 {pairs(0, 1), 1, 1, true},
		"all of a region":     {pairs(0, 100), 1, 100, true},
		"two of two":          {pairs(0, 10, 20, 10, 30, 10, 40, 60), 2, 100, true},
		"nothing":             {nil, 1, 100, false},
		"no block":            {pairs(0, 1), 0, 100, false},
		"half a pair":         {pairs(0, 1, 2), 1, 100, false},
		"a byte less":         {pairs(0, 1)[:15], 1, 100, false},
		"three for two":       {pairs(0, 1, 1, 1, 2, 1), 2, 100, false},
		"one for two":         {pairs(0, 1), 2, 100, false},
		"empty":               {pairs(0, 0), 1, 100, false},
		"behind the end":      {pairs(100, 1), 1, 100, false},
		"over the end":        {pairs(1, 100), 1, 100, false},
		"sum overflows":       {pairs(math.MaxUint64, 2), 1, 100, false},
		"sum overflows to 99": {pairs(math.MaxUint64-0, 100), 1, 100, false},
		"length overflows":    {pairs(1, math.MaxUint64), 1, 100, false},
		"negative":            {pairs(1<<63, 1), 1, 100, false},
		"negative length":     {pairs(0, 1<<63), 1, 100, false},
		"largest":             {pairs(MaxSize-1, 1), 1, MaxSize, true},
		"behind the largest":  {pairs(MaxSize, 1), 1, MaxSize, false},
	} {
		if _, err := ParseLayout(x.bulk, x.blocks, x.size); (err == nil) != x.ok || err != nil && !errors.Is(err, ErrLayout) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzParseLayout compares with a reference that has no limits to overflow.
func FuzzParseLayout(f *testing.F) {
	f.Add(pairs(0, 10, 20, 10), 2, int64(100))
	f.Add(pairs(math.MaxUint64, 2), 1, int64(100))
	f.Add(pairs(5, 10, 0, 5, 15, 1, 99, 1), 2, int64(100))
	f.Fuzz(func(t *testing.T, bulk []byte, blocks int, size int64) {
		if size < 1 || size > MaxSize || len(bulk) > 4<<20 {
			t.Skip() // no such region, or no such command
		}
		l, err := ParseLayout(bulk, blocks, size)
		n := len(bulk) / extentBytes
		good := blocks > 0 && n > 0 && len(bulk)%extentBytes == 0 && n%max(blocks, 1) == 0
		total := new(big.Int)
		for i := 0; good && i < n; i++ {
			offset := new(big.Int).SetUint64(binary.LittleEndian.Uint64(bulk[16*i:]))
			length := new(big.Int).SetUint64(binary.LittleEndian.Uint64(bulk[16*i+8:]))
			total.Add(total, length)
			end := new(big.Int).Add(offset, length)
			good = length.Sign() > 0 && end.Cmp(big.NewInt(size)) <= 0
		}
		if (err == nil) != good {
			t.Fatalf("%v, want good: %v", err, good)
		}
		if err != nil {
			return
		}
		var sum, extents int64
		for i := range blocks {
			sum += l.Size(i)
			extents += int64(len(l.Block(i)))
		}
		if sum != total.Int64() || extents != int64(n) || l.Len() != n {
			t.Fatalf("blocks have %d bytes in %d extents, want %v in %d", sum, extents, total, n)
		}
	})
}

func TestCheckDisjoint(t *testing.T) {
	const size = 64
	rng := rand.New(rand.NewPCG(1, 1))
	seen := map[bool]int{}
	for range 5000 {
		var numbers []uint64
		var used [size]bool
		overlap := false
		for range 1 + rng.IntN(8) {
			offset := rng.IntN(size)
			length := 1 + rng.IntN(min(8, size-offset))
			numbers = append(numbers, uint64(offset), uint64(length))
			for i := offset; i < offset+length; i++ {
				overlap = overlap || used[i]
				used[i] = true
			}
		}
		l, err := ParseLayout(pairs(numbers...), 1, size)
		if err != nil {
			t.Fatal(err)
		}
		err = l.CheckDisjoint()
		if (err != nil) != overlap || err != nil && !errors.Is(err, ErrLayout) {
			t.Fatalf("%v: %v", numbers, err)
		}
		for i, e := range l.Block(0) {
			if uint64(e.Offset) != numbers[2*i] {
				t.Fatal("the check has changed the order")
			}
		}
		seen[overlap]++
	}
	if seen[true] < 100 || seen[false] < 100 {
		t.Fatalf("one side was hardly tried: %v", seen)
	}
}
