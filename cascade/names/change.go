package names

import "cascadekv/internal/block"

// Kind is what a Change is about.
type Kind uint8

// Changes, with the fields that are set.
const (
	Bound   Kind = iota + 1 // Name stands for Block now
	Unbound                 // Name no longer stands for Block; Bound of another may follow
	Gone                    // Name is no more
	Link                    // Name's record is to be written to the tiers that have Block
	Unlink                  // Record is to be withdrawn there, as of its Seq
	Renewed                 // Name's record has changed otherwise
	Stored                  // Name became readable, or stands for another block
	Removed                 // Name, of Block, is no longer readable
	Hold                    // Block has N reasons more to stay in Level
	Release                 // and N fewer
	Needed                  // Block.Needed may have changed
	Moved                   // Block, which has names, came to Level or left it
	Empty                   // Block has lost its last name
)

// Change is one consequence of an operation.
type Change struct {
	Kind   Kind
	Level  uint8
	N      int32
	Name   *Name
	Block  *Block
	Record *block.Name // valid until the list is empty
}

// changes is a list that keeps its memory.
type changes struct {
	list    []Change
	next    int
	records []block.Name // that list points to
}

// Next removes the oldest change from the list and returns it; false when the
// list is empty. Operations may be called between two calls: what they change
// comes last.
func (c *changes) Next() (Change, bool) {
	if c.next == len(c.list) {
		clear(c.list)
		clear(c.records)
		c.list, c.records, c.next = c.list[:0], c.records[:0], 0
		return Change{}, false
	}
	c.next++
	return c.list[c.next-1], true
}

func (c *changes) add(kind Kind, n *Name, b *Block) {
	c.list = append(c.list, Change{Kind: kind, Name: n, Block: b})
}

// hold adds holds of a block in a level; a negative number is released.
func (c *changes) hold(b *Block, level int, by int32) {
	switch {
	case by > 0:
		c.list = append(c.list, Change{Kind: Hold, Block: b, Level: uint8(level), N: by})
	case by < 0:
		c.list = append(c.list, Change{Kind: Release, Block: b, Level: uint8(level), N: -by})
	}
}

func (c *changes) unlink(b *Block, record *block.Name) {
	c.records = append(c.records, *record)
	c.list = append(c.list, Change{Kind: Unlink, Block: b, Record: &c.records[len(c.records)-1]})
}
