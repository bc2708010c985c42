package tiers

// Claim is a range of a memory tier's File that somebody outside still uses
// when a process takes the tier over from an earlier one: its bytes must neither
// move nor be given to anybody else until that is over.
type Claim struct {
	Offset, Size int64  // as Located has it
	CRC          uint32 // of a block that is read; 0 for a slot
	Slot         bool   // it is filled, otherwise it is read
}

// Claimed keeps the range of one Claim: Pin one that is read, Slot one that is
// filled. Both are nil when the range can not be kept, because something else
// lies there.
type Claimed struct {
	Pin  Pin
	Slot Slot
}

// Claiming is implemented by memory tiers that can be opened with claims.
type Claiming interface {
	// Claimed hands over what keeps the ranges, in the order of the claims. It
	// gives them out once; the caller ends each of them.
	Claimed() []Claimed
}
