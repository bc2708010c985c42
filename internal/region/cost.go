package region

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrBudget means that the regions of a process, or those of one client, take all
// that they may.
var ErrBudget = errors.New("region: the budget for regions is used up")

// pageShare is how many bytes of a region one byte of page tables maps: a page of
// 4 KiB has an entry of 8 bytes.
const pageShare = 512

// Cost is what regions take of this process, beside the client's memory itself.
type Cost struct {
	Mappings    int   // of vm.max_map_count
	Descriptors int   // kept open
	Address     int64 // bytes of address space
	Tables      int64 // bytes of page tables, once every page that can be there was touched
	Pinned      int64 // bytes of memory that this process made, and that no one pages out
}

// CostOf is the cost of a region of size bytes, on a machine with so much memory,
// that keeps so many descriptors.
func CostOf(size, memory int64, descriptors int) Cost {
	return Cost{Mappings: 1, Descriptors: descriptors, Address: size, Tables: min(size, memory)/pageShare + 1}
}

func (c Cost) add(o Cost, sign int) Cost {
	return Cost{
		Mappings: c.Mappings + sign*o.Mappings, Descriptors: c.Descriptors + sign*o.Descriptors,
		Address: c.Address + int64(sign)*o.Address, Tables: c.Tables + int64(sign)*o.Tables,
		Pinned: c.Pinned + int64(sign)*o.Pinned,
	}
}

// Plus returns the sum of two costs.
func (c Cost) Plus(o Cost) Cost { return c.add(o, 1) }

// Minus returns the difference of two costs.
func (c Cost) Minus(o Cost) Cost { return c.add(o, -1) }

// Within returns an error that matches ErrBudget unless the cost is within a
// limit. A field of the limit that is zero is no bound.
func (c Cost) Within(limit Cost) error {
	for _, part := range []struct {
		name     string
		is, most int64
	}{
		{"mappings", int64(c.Mappings), int64(limit.Mappings)}, {"descriptors", int64(c.Descriptors), int64(limit.Descriptors)},
		{"bytes of address space", c.Address, limit.Address}, {"bytes of page tables", c.Tables, limit.Tables}, {"bytes of memory of rings", c.Pinned, limit.Pinned},
	} {
		if part.most > 0 && part.is > part.most {
			return fmt.Errorf("%w: with this one they would take %d %s, and may take %d; detach some", ErrBudget, part.is, part.name, part.most)
		}
	}
	return nil
}

// SizeOf returns the size of the file that fd stands for, in bytes.
func SizeOf(fd int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("region: fstat: %w", err)
	}
	return st.Size, nil
}
