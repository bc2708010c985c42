package config

import "cascadekv/internal/units"

// Config is the whole configuration of a rank. It is a plain value; copies share
// only AllowUIDs, ServerUIDs, UpgradeTo and NVMe.Paths, which nobody changes after Load.
//
// Tags: toml names the key, help is its line in --help, reload:"yes" marks what
// SIGHUP may change, and path:"yes" the name of a file or directory. configs/cascade.toml explains each key at length.
type Config struct {
	Rank           int            `toml:"rank" help:"number of this rank in its job; ranks of one node must differ"`
	Job            string         `toml:"job" help:"name of the job, for logs and {job}"`
	Socket         string         `toml:"socket" path:"yes" help:"unix socket for clients; empty: none"`
	Listen         string         `toml:"listen" help:"TCP address for clients, host:port; empty: none"`
	PasswordFile   string         `toml:"password_file" path:"yes" reload:"yes" help:"file whose first line clients must send with AUTH; empty: no password"`
	AllowUIDs      []int          `toml:"allow_uids" help:"user ids that may use the rank on this node besides its own and root"`
	ServerUIDs     []int          `toml:"server_uids" reload:"yes" help:"user ids whose ranks clients trust besides their own user's and root's"`
	UpgradeTo      []string       `toml:"upgrade_binaries" reload:"yes" help:"programs that may replace a running rank besides the one it was started from"`
	MaxConnections int            `toml:"max_connections" reload:"yes" help:"most client connections at a time"`
	Policy         string         `toml:"policy" help:"eviction policy: prefix, lru, arc, s3fifo or paper"`
	IDBits         int            `toml:"id_bits" help:"width of block ids in bits: 128 or 256"`
	VerifyReads    bool           `toml:"verify_reads" help:"check the CRC32C of every block that is served from memory"`
	Lease          units.Duration `toml:"lease" reload:"yes" help:"how long a key stays readable after EXISTS or GET found it"`
	CleanAbove     float64        `toml:"clean_above" reload:"yes" help:"share of shm above which blocks are written to lustre ahead of need"`
	StoreThreshold int            `toml:"store_threshold" reload:"yes" help:"requests for a block, its put among them, before it is written to lustre to make room; with fewer it is dropped"`
	StorePrompts   bool           `toml:"store_prompt_only" reload:"yes" help:"write blocks of prompts alone to lustre to make room; those that clients mark as generated are dropped"`
	NamesBytes     units.Bytes    `toml:"names_bytes" reload:"yes" help:"heap that the names of blocks may take; 0: an eighth of shm.bytes, at least 256MiB"`

	Admin    Admin    `toml:"admin"`
	Shm      Shm      `toml:"shm"`
	Host     Host     `toml:"host"`
	NVMe     NVMe     `toml:"nvme"`
	Lustre   Lustre   `toml:"lustre"`
	Peers    Peers    `toml:"peers"`
	Resp     Resp     `toml:"resp"`
	Deadline Deadline `toml:"deadline"`
	Log      Log      `toml:"log"`
}

// Admin is the HTTP side: metrics, health, profiles.
type Admin struct {
	Listen string `toml:"listen" help:"loopback address of /metrics, /healthz and pprof, host:port, or path of a unix socket; empty: none"`
}

// Shm is the shared-memory tier.
type Shm struct {
	Bytes units.Bytes `toml:"bytes" help:"size of the shared-memory tier"`
	Path  string      `toml:"path" path:"yes" help:"arena file, on a memory file system"`
	Keep  bool        `toml:"keep" reload:"yes" help:"leave the arena file at a clean end too, for a warm restart"`
}

// Host is the host-memory tier that takes the place of GPU memory.
type Host struct {
	Bytes units.Bytes `toml:"bytes" help:"size of the host-memory tier above shm; 0: none"`
}

// NVMe is the tier on disks of the node, below shm and above lustre.
type NVMe struct {
	Paths     []string    `toml:"paths" path:"yes" help:"directories on disks of this node, one for each disk, for what leaves shm; none: no such tier"`
	Bytes     units.Bytes `toml:"bytes" help:"what the tier takes of these disks together"`
	FileBytes units.Bytes `toml:"file_bytes" help:"the pieces in which blocks lie there; a block takes as many as it needs"`
	MaxWrite  units.Bytes `toml:"max_write_bytes_per_second" reload:"yes" help:"what this rank writes there in a second; blocks beyond it go to lustre, or are dropped to make room; 0: no limit"`
}

// Lustre is the tier of aggregated files.
type Lustre struct {
	Dir           string      `toml:"dir" path:"yes" help:"directory of the lustre tier; empty: none"`
	SegmentBytes  units.Bytes `toml:"segment_bytes" help:"size at which a segment file is sealed and the next begun"`
	SegmentBlocks int         `toml:"segment_blocks" help:"blocks at which a segment file is sealed though it is smaller; 0: any number"`
	MaxFiles      int         `toml:"max_files" help:"segments of a rank above which those that are not full are rewritten into fewer; 0: any number"`
	StripeCount   int         `toml:"stripe_count" help:"OSTs over which a segment is striped, as lfs setstripe -c; 0: the file system's default, -1: all"`
	StripeSize    units.Bytes `toml:"stripe_size" help:"bytes on one OST before the next, as lfs setstripe -S; 0: the file system's default"`
	Pool          string      `toml:"pool" help:"pool of OSTs, as lfs setstripe -p; empty: the directory's"`
	Setstripe     string      `toml:"setstripe" help:"options of lfs setstripe, instead of stripe_count, stripe_size and pool"`
	Budget        units.Bytes `toml:"budget" help:"what the segments of the campaign may take together, those of earlier jobs included; 0: no limit"`
	MaxWrite      units.Bytes `toml:"max_write_bytes_per_second" reload:"yes" help:"what this rank writes there in a second, a drain excepted; blocks beyond it are dropped to make room; 0: no limit"`
	MaxRead       units.Bytes `toml:"max_read_bytes_per_second" reload:"yes" help:"what this rank reads there in a second; loads beyond it are misses; 0: no limit"`
	Codec         string      `toml:"codec" help:"how blocks are stored there: none, as they are, or auto, encoded where that pays"`
	Group         string      `toml:"group" help:"group, by name or number, whose members share dir and read each other's segments; empty: none"`
	Direct        string      `toml:"direct" help:"past the page cache: auto, on or off"`
	IOUring       string      `toml:"io_uring" help:"batches of reads by io_uring: auto, on or off"`
	Advise        bool        `toml:"advise" help:"announce many small reads to Lustre's servers before they are made (lfs ladvise willread)"`
	Index         string      `toml:"index" path:"yes" help:"node-local directory for the catalogue of other ranks' and earlier jobs' segments: auto, a path, or off"`
	IndexTuning   string      `toml:"index_tuning" help:"whether that index is shaped for the work it does: auto or off"`
}

// Peers are the other ranks of the job.
type Peers struct {
	Fabric     string      `toml:"fabric" help:"how ranks talk to each other: off, tcp or mpi"`
	Listen     string      `toml:"listen" help:"TCP address of the fabric, host:port or interface:port; port 0: any"`
	Gossip     string      `toml:"gossip" help:"TCP and UDP address of membership, host:port or interface:port; port 0: any"`
	Advertise  string      `toml:"advertise" help:"host other ranks reach this one at; empty: that of listen, or of interface"`
	Interface  string      `toml:"interface" help:"interfaces, such as hsn0 or hsn*, or networks, such as 10.1.0.0/16, with commas: the first that is here is listened on; empty: a high-speed one, else the node's name's"`
	Ports      units.Ports `toml:"ports" help:"ports that a firewall lets through, first-last: listen and gossip take free ones of them for port 0; empty: any"`
	Seeds      string      `toml:"seeds" help:"gossip addresses of some other ranks, host:port, with commas"`
	Ranks      int         `toml:"ranks" help:"ranks that the job starts with, so that each takes the others in together; 0: not known"`
	SecretFile string      `toml:"secret_file" path:"yes" help:"file with the secret that all ranks of the job share"`
	Munge      string      `toml:"munge" help:"credentials of the user, by MUNGE, over tcp: auto, require or off"`
	MungeSock  string      `toml:"munge_socket" path:"yes" help:"socket of the node's munged; empty: the usual one"`
	Homes      int         `toml:"homes" help:"ranks that keep the directory entry of a key"`
	OneSided   units.Bytes `toml:"one_sided_from" help:"over mpi, reads of at least so many bytes are one-sided where a probe allows it; 0: none"`
	ReadBuffer units.Bytes `toml:"landing" help:"memory for blocks that are read from other ranks and not kept"`
}

// Resp is the Redis protocol.
type Resp struct {
	NativeMiss  string         `toml:"native_miss" help:"answer misses of LMCache's C++ client in its fixed length: auto or off"`
	ByReference string         `toml:"by_reference" help:"let clients copy large values from where they lie: auto or off"`
	Spin        units.Duration `toml:"spin" help:"longest watch for what a client sends next before a thread goes to sleep; 0s: none"`
}

// Deadline bounds waits.
type Deadline struct {
	Room  units.Duration `toml:"room" reload:"yes" help:"longest wait of a put for room"`
	Fetch units.Duration `toml:"fetch" reload:"yes" help:"longest wait of a get for lustre or another rank before it is a miss"`
	Drain units.Duration `toml:"drain" reload:"yes" help:"longest time SIGTERM spends on writing blocks to lustre"`
}

// Log is what goes to standard error.
type Log struct {
	Level  string `toml:"level" reload:"yes" help:"debug, info, warn or error"`
	Format string `toml:"format" help:"text or json"`
}

// Default returns the built-in values. Path and Socket still hold their
// placeholders; Load replaces them.
func Default() Config {
	return Config{
		Socket:         "/tmp/cascade-{uid}/rank{rank}.sock",
		MaxConnections: 4096,
		Policy:         "prefix",
		IDBits:         128,
		VerifyReads:    true,
		Lease:          60 * second,
		CleanAbove:     0.75,
		StoreThreshold: 1,
		Admin:          Admin{Listen: ""},
		Shm: Shm{
			Bytes: units.GiB,
			Path:  "/dev/shm/cascade-{uid}-{rank}-{socket}.arena",
		},
		NVMe:     NVMe{FileBytes: units.MiB},
		Lustre:   Lustre{Codec: "none", Direct: "auto", IOUring: "auto", Index: "auto", IndexTuning: "off", SegmentBytes: units.GiB, SegmentBlocks: 32 << 10},
		Peers:    Peers{Fabric: "off", Listen: ":0", Gossip: ":0", Munge: "auto", Homes: 2, ReadBuffer: 64 * units.MiB},
		Resp:     Resp{NativeMiss: "auto", ByReference: "auto", Spin: 50 * second / 1e6},
		Deadline: Deadline{Room: 5 * second, Fetch: 3 * second, Drain: 90 * second},
		Log:      Log{Level: "info", Format: "text"},
	}
}

const second = units.Duration(1e9)

// leastNames is the least that names_bytes is by default.
const leastNames = 256 * units.MiB

// NameBytes is the bound on the heap that names take, in bytes, by default too.
func (c *Config) NameBytes() int64 {
	if c.NamesBytes > 0 {
		return int64(c.NamesBytes)
	}
	return int64(max(leastNames, c.Shm.Bytes/8))
}
