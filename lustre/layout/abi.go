package layout

// Calls and names of Lustre's interface.
const (
	iocSetStripe = 0x4008669a
	iocAdvise    = 0x802066fa
	xattrLayout  = "lustre.lov"
)

// What the layout's bytes start with.
const (
	magicV1       = 0x0BD10BD0
	magicV3       = 0x0BD30BD0 // with a pool
	magicSpecific = 0x0BD50BD0 // with a list of OSTs
	magicComp     = 0x0BD60BD0 // with components
	magicForeign  = 0x0BD70BD0
	magicSEL      = 0x0BD80BD0 // with components that extend themselves
)

// Sizes of its parts, in bytes.
const (
	sizeV1     = 32
	sizeV3     = 48
	sizeComp   = 32
	sizeEntry  = 48
	sizeObject = 24
)

// Bits of a pattern.
const (
	patternRAID0      = 0x001
	patternMDT        = 0x100
	patternOverstripe = 0x200
	patternReleased   = 0x80000000
)

// Flags of a component.
const (
	flagInit      = 0x10
	flagExtension = 0x40
)

const (
	anyOffset    = 0xffff // the metadata server chooses the first OST
	eofEnd       = ^uint64(0)
	manyStripes  = 0xffe0 // counts from here on are negative
	extensionKiB = 1024   // unit of an extension's size
	maxXattr     = 64 << 10
)
