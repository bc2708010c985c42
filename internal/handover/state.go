package handover

// State is what goes from one program to the next. The order and the types of its
// fields, and of theirs, are the byte layout.
type State struct {
	PID       uint32 // of the process, the same before and after
	Began     int64  // when clients began to wait, Unix nanoseconds
	From      string // version of the program that wrote this
	Asked     uint64 // connection that asked for it and waits for the answer, 0: none
	LastConn  uint64 // number of the youngest connection so far
	NextEvent uint64 // number that the next event would have had
	Listeners []Listener
	Claims    []Claim
	Conns     []Conn
	Leases    []Lease
	Seeds     []string // gossip addresses of other ranks
	Arena     Arena
}

// Arena is the open arena file.
type Arena struct {
	FD   int32  // 0: none is handed over
	Path string // that it has, or had
}

// Kind is what a listener is for.
type Kind uint8

// Kinds of listeners.
const (
	Unix Kind = iota + 1
	TCP
	Admin
)

// Listener is a listening socket.
type Listener struct {
	Kind Kind
	FD   int32
}

// Claim is a range of the arena file.
type Claim struct {
	Offset, Size int64
	CRC          uint32 // of what lies there; 0 for a stage
	Stage        bool   // a client fills it; otherwise it is read
}

// Conn is one connection between two commands.
type Conn struct {
	ID    uint64
	FD    int32
	Flags Flags
	Proto uint8 // of RESP: 2 or 3
	DB    uint8 // selected database
	Name  string
	Size  int64 // of the last value of a fixed-length client, -1: none

	Input       []byte  // received and not yet served
	Descriptors []int32 // that came with it
	Holds       int32   // descriptor, -1: none

	LastHeld int64 // number given last, of views and stages
	Views    []View
	Stages   []Stage
	Pins     []Pin

	LastRegion int64 // number given last
	Regions    []Region
	Jobs       []Job
}

// Flags of a connection.
type Flags uint8

// Flags of a connection, as bits.
const (
	Authed      Flags = 1 << iota // it may use commands that ask for a password
	MayBeFixed                    // nothing speaks against a fixed-length client
	SeenFixed                     // a key of such a client was seen
	WaitsToHang                   // it is closed unless something comes
	knownFlags  = 1<<iota - 1
)

// NoClaim is the claim of a pin whose block lies in no file.
const NoClaim = 1<<32 - 1

// View is a block that a client reads in place. Claim is an index into
// State.Claims.
type View struct {
	Number int64
	Claim  uint32
	Tier   string // that served it
}

// Stage is room that a client fills.
type Stage struct {
	Number int64
	Claim  uint32
}

// Pin is a block that a client keeps in memory, known by the name under which
// it was pinned.
type Pin struct {
	Namespace, Key string
	Claim          uint32
}

// Region is memory of a client.
type Region struct {
	Number int64
	FD     int32
	Notify int32 // eventfd, -1: none
	Size   int64 // as of its attachment
}

// Job is a transfer that CASCADE.DONE has not reported.
type Job struct {
	Number int64
	Status []byte // one for each key
	Over   bool   // finished: what follows is empty

	Region         int64 // number
	Next           uint32
	Flags          JobFlags
	Namespace      string
	Parent         string
	Expires        int64 // Unix nanoseconds, 0: never
	Keys           []string
	ExtentsOfBlock uint32  // of each
	Extents        []int64 // offset and length in turn
}

// JobFlags are the words of a STORE or LOAD, as bits.
type JobFlags uint8

// Words of a STORE or LOAD.
const (
	Store JobFlags = 1 << iota // else LOAD
	Chain
	Prefix
	Replace
	Generated
	knownJobFlags = 1<<iota - 1
)

// Lease is a promise to a connection that a name stays readable.
type Lease struct {
	Conn           uint64
	Namespace, Key string
	Until          int64 // Unix nanoseconds
}
