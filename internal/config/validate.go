package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cascadekv/internal/units"
)

// MaxSocketPath is the longest path a unix socket can have, in bytes.
const MaxSocketPath = 107

// MinShm is the smallest shared-memory tier, MinSegment the smallest segment.
const (
	MinShm     = 4 * units.MiB
	MinSegment = units.MiB
)

const (
	maxRank      = 99_999
	maxUID       = 1<<32 - 2
	maxClients   = 1_000_000
	maxThreshold = 100
	maxLease     = units.Duration(24 * 3600 * 1e9)
	maxSpin      = units.Duration(1e6)
	maxWait      = units.Duration(3600 * 1e9)
)

var jobName = regexp.MustCompile(`^[A-Za-z0-9._-]{0,64}$`)

// Validate reports every value that cannot work by itself or together with
// others: *ValueError values, joined. It does not look at the machine.
func (c *Config) Validate() error {
	v := validator{config: c}
	v.identity()
	v.listeners()
	v.space()
	v.peers()
	v.behaviour()
	return errors.Join(v.problems...)
}

type validator struct {
	config   *Config
	problems []error
}

// check reports key as bad unless ok.
func (v *validator) check(ok bool, key, problem, remedy string) {
	if ok {
		return
	}
	k, _ := Lookup(key)
	v.problems = append(v.problems, &ValueError{Origin: Built, Key: key, Value: k.TOML(v.config), Problem: problem, Remedy: remedy})
}

func (v *validator) oneOf(key, value string, valid ...string) {
	if slices.Contains(valid, value) {
		return
	}
	v.check(false, key, "not one of "+strings.Join(valid, ", "), fmt.Sprintf("did you mean %q?", nearest(value, valid)))
}

func (v *validator) identity() {
	c := v.config
	v.check(c.Rank >= 0 && c.Rank <= maxRank, "rank", "out of range", fmt.Sprintf("use 0 to %d", maxRank))
	v.check(jobName.MatchString(c.Job) && c.Job != ".." && c.Job != ".", "job", "not a plain name",
		"use at most 64 letters, digits, dots, dashes and underscores")
}

func (v *validator) listeners() {
	c := v.config
	v.check(c.Socket != "" || c.Listen != "", "socket", "no client can connect: listen is empty too", "set socket or listen")
	v.check(len(c.Socket) <= MaxSocketPath, "socket",
		fmt.Sprintf("%d bytes, and the kernel takes %d", len(c.Socket), MaxSocketPath), "use a shorter path, for example below /tmp or /run")
	if c.Socket != "" {
		v.absolute("socket", c.Socket)
	}
	if c.Listen != "" {
		problem := badAddress(c.Listen)
		v.check(problem == "", "listen", problem, "write host:port, for example 127.0.0.1:6380")
		v.check(problem != "" || loopback(c.Listen) || c.PasswordFile != "", "listen",
			"reachable from other nodes without a password", "set password_file, or listen on 127.0.0.1")
	}
	switch {
	case filepath.IsAbs(c.Admin.Listen):
		v.check(len(c.Admin.Listen) <= MaxSocketPath && !strings.ContainsRune(c.Admin.Listen, 0), "admin.listen",
			fmt.Sprintf("no path that the kernel takes for a socket: at most %d bytes", MaxSocketPath), "use a shorter path, for example below /tmp or /run")
		v.check(c.Admin.Listen != c.Socket, "admin.listen", "the socket of clients", "give it a path of its own")
	case c.Admin.Listen != "":
		problem := badAddress(c.Admin.Listen)
		v.check(problem == "", "admin.listen", problem, "write host:port, for example 127.0.0.1:9480, or the absolute path of a unix socket")
		v.check(problem != "" || loopback(c.Admin.Listen), "admin.listen",
			"reachable from other nodes, and it has no password", "use 127.0.0.1, and an SSH tunnel or the site's exporter proxy from outside")
	}
	v.uids("allow_uids", c.AllowUIDs)
	v.uids("server_uids", c.ServerUIDs)
	v.check(!slices.ContainsFunc(c.UpgradeTo, func(p string) bool { return !filepath.IsAbs(p) || strings.ContainsRune(p, 0) }), "upgrade_binaries",
		"holds something else than absolute paths", "name programs in full, for example /opt/cascade/2.1/bin/cascaded")
	v.check(c.MaxConnections >= 1 && c.MaxConnections <= maxClients, "max_connections", "out of range",
		fmt.Sprintf("use 1 to %d; LMCache opens up to 150 in each process", maxClients))
}

func (v *validator) uids(key string, uids []int) {
	v.check(!slices.ContainsFunc(uids, func(u int) bool { return u < 0 || u > maxUID }), key,
		"holds a number that is no user id", "list numeric user ids, as id -u prints them")
}

func (v *validator) space() {
	c := v.config
	v.check(c.Shm.Bytes >= MinShm, "shm.bytes", "too small to hold blocks", "use at least "+MinShm.String()+", better some GiB")
	v.absolute("shm.path", c.Shm.Path)
	v.check(c.Host.Bytes >= 0, "host.bytes", "negative", "use 0 for none")
	v.disks()
	if c.Lustre.Dir != "" {
		v.absolute("lustre.dir", c.Lustre.Dir)
	}
	size, budget := c.Lustre.SegmentBytes, c.Lustre.Budget
	v.oneOf("lustre.codec", c.Lustre.Codec, "none", "auto")
	v.oneOf("lustre.direct", c.Lustre.Direct, "auto", "on", "off")
	v.oneOf("lustre.io_uring", c.Lustre.IOUring, "auto", "on", "off")
	v.check(c.Lustre.Index == "auto" || c.Lustre.Index == "off" || filepath.IsAbs(c.Lustre.Index) && !strings.ContainsRune(c.Lustre.Index, 0),
		"lustre.index", "neither auto, off nor an absolute path", "name a directory on a disk of the node, for example /local/scratch, or leave it at \"auto\"")
	v.oneOf("lustre.index_tuning", c.Lustre.IndexTuning, "auto", "off")
	v.check(budget == 0 || budget >= 2*size, "lustre.budget", "less than two segments", "use 0 for no limit, or many times lustre.segment_bytes: each rank has its share")
	v.check(size >= MinSegment && size <= units.TiB && size%(64*units.KiB) == 0, "lustre.segment_bytes", "not a usable segment size",
		"use a multiple of 64KiB from "+MinSegment.String()+" to 1TiB; 1GiB suits most file systems")
	v.check(c.Lustre.SegmentBlocks == 0 || c.Lustre.SegmentBlocks >= minSegmentBlocks && c.Lustre.SegmentBlocks <= maxSegmentBlocks, "lustre.segment_blocks",
		"not a usable number of blocks", fmt.Sprintf("use 0 for any number, or %d to %d", minSegmentBlocks, maxSegmentBlocks))
	v.check(c.Lustre.MaxFiles == 0 || c.Lustre.MaxFiles >= minFiles && c.Lustre.MaxFiles <= maxFiles, "lustre.max_files",
		"not a usable number of files", fmt.Sprintf("use 0 for any number, or %d to %d", minFiles, maxFiles))
	v.striping()
}

// Bounds on the tier on local disks.
const (
	maxDisks    = 64
	maxNVMeFile = units.GiB
	nvmeFiles   = 16 // that there is room for at least
)

func (v *validator) disks() {
	n := v.config.NVMe
	if len(n.Paths) == 0 {
		return
	}
	for i, path := range n.Paths {
		v.absolute("nvme.paths", path)
		v.check(!slices.Contains(n.Paths[:i], path), "nvme.paths", "names a directory twice", "name one on each disk")
	}
	v.check(len(n.Paths) <= maxDisks, "nvme.paths", "too many directories", fmt.Sprintf("name at most %d, one on each disk", maxDisks))
	v.check(n.FileBytes >= 4*units.KiB && n.FileBytes <= maxNVMeFile, "nvme.file_bytes", "out of range", "use 4KiB to "+maxNVMeFile.String()+"; 1MiB suits blocks from some 100 KiB")
	v.check(n.Bytes >= nvmeFiles*n.FileBytes, "nvme.bytes", "too small to hold blocks",
		fmt.Sprintf("use at least %d times nvme.file_bytes, better some hundred GiB", nvmeFiles))
}

// Bounds on the blocks of a segment.
const (
	minSegmentBlocks = 16
	maxSegmentBlocks = 1 << 24
)

// Bounds on lustre.max_files. Below the least there are always some that are too
// different to be rewritten into one.
const (
	minFiles = 16
	maxFiles = 1 << 24
)

// Lustre's bounds on stripes.
const (
	maxStripes    = 2000
	stripeUnit    = 64 * units.KiB
	maxStripeSize = 4*units.GiB - stripeUnit
)

var poolName = regexp.MustCompile(`^[A-Za-z0-9_-]{0,15}$`)

// striping does not read setstripe, a language of its own; whoever lays out
// files does (see Loaded.Refuse).
func (v *validator) striping() {
	c := v.config.Lustre
	v.check(c.StripeCount >= -1 && c.StripeCount <= maxStripes, "lustre.stripe_count", "not a number of stripes",
		fmt.Sprintf("use 1 to %d, -1 for all OSTs, or 0 for the file system's default", maxStripes))
	v.check(c.StripeSize >= 0 && c.StripeSize <= maxStripeSize && c.StripeSize%stripeUnit == 0, "lustre.stripe_size", "not a size that Lustre takes",
		"use a multiple of 64KiB below 4GiB, such as 1m or 4m, or 0 for the file system's default")
	v.check(poolName.MatchString(c.Pool), "lustre.pool", "not the name of a pool",
		"use at most 15 letters, digits, dashes and underscores; lfs pool_list names the pools")
	v.check(c.Setstripe == "" || c.StripeCount == 0 && c.StripeSize == 0 && c.Pool == "", "lustre.setstripe",
		"given next to stripe_count, stripe_size or pool", "put everything into setstripe, or leave it empty")
}

func (v *validator) peers() {
	p := v.config.Peers
	v.oneOf("peers.fabric", p.Fabric, "off", "tcp", "mpi")
	if p.Fabric == "off" {
		return
	}
	for _, a := range []struct{ key, value string }{{"peers.listen", p.Listen}, {"peers.gossip", p.Gossip}} {
		problem := badAddress(a.value)
		v.check(problem == "", a.key, problem, "write host:port or interface:port; port 0 takes any, no host is one address of the node, 0.0.0.0 is all")
	}
	v.check(p.Ports.Count() != 1, "peers.ports", "a single port", "a rank needs two, of which gossip takes one, and two more while it is upgraded: widen the range")
	for word := range strings.SplitSeq(p.Interface, ",") {
		_, bad := path.Match(strings.TrimSpace(word), "")
		_, network := netip.ParsePrefix(strings.TrimSpace(word))
		v.check(p.Interface == "" || network == nil || bad == nil && strings.TrimSpace(word) != "" && !strings.ContainsAny(word, "/:"), "peers.interface",
			fmt.Sprintf("holds %q, no interface and no network", word), "write names as ip -br addr shows them, or address/bits: hsn0,ib*,10.1.0.0/16,2001:db8::/64")
	}
	for _, seed := range p.SeedList() {
		problem := badAddress(seed)
		v.check(problem == "", "peers.seeds", problem, "write host:port,host:port, the gossip addresses of some ranks")
	}
	v.check(p.Ranks >= 0, "peers.ranks", "negative", "use 0 if it is not known")
	v.check(p.SecretFile != "" || p.Fabric == "mpi", "peers.secret_file", "ranks would let anybody in", "head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE")
	v.oneOf("peers.munge", p.Munge, "auto", "require", "off")
	v.check(p.Homes >= 1 && p.Homes <= 8, "peers.homes", "out of range", "use 1 to 8; with 1, a dead rank's entries are gone with it")
	v.check(p.OneSided >= 0, "peers.one_sided_from", "negative", "use 0 for none")
	v.check(p.ReadBuffer >= 0, "peers.landing", "negative", "use 0 for none")
}

func (v *validator) behaviour() {
	c := v.config
	v.oneOf("policy", c.Policy, "prefix", "lru", "arc", "s3fifo", "paper")
	v.check(c.IDBits == 128 || c.IDBits == 256, "id_bits", "no width of a block id", "use 128 or 256")
	v.check(c.Lease >= 0 && c.Lease <= maxLease, "lease", "out of range", "use 0 to 24h; 60s outlasts any client's lookup")
	v.check(c.StoreThreshold >= 1 && c.StoreThreshold <= maxThreshold, "store_threshold", "not a number of requests", "use 1, which writes every block, to 100")
	v.check(c.CleanAbove > 0 && c.CleanAbove <= 1, "clean_above", "not a share", "use a number above 0 and at most 1, such as 0.75")
	v.check(c.NamesBytes == 0 || c.NamesBytes >= units.MiB, "names_bytes", "less than 1MiB", "use 0 for the default, or some 1.4KB for each name")
	v.oneOf("resp.native_miss", c.Resp.NativeMiss, "auto", "off")
	v.oneOf("resp.by_reference", c.Resp.ByReference, "auto", "off")
	v.check(c.Resp.Spin >= 0 && c.Resp.Spin <= maxSpin, "resp.spin", "out of range", "use 0s to 1ms; 50us is the default")
	v.check(c.Deadline.Room > 0 && c.Deadline.Room <= maxWait, "deadline.room", "out of range", "use more than 0 and at most 1h; 5s is the default")
	v.check(c.Deadline.Fetch > 0 && c.Deadline.Fetch <= maxWait, "deadline.fetch", "out of range", "use more than 0 and at most 1h; redis-py gives up after 5s, so 3s is the default")
	v.check(c.Deadline.Drain >= 0 && c.Deadline.Drain <= maxWait, "deadline.drain", "out of range", "use 0 to 1h, less than the notice the batch system gives")
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "text", "json")
}

// badAddress returns what is wrong with a host:port; "" when nothing is.
func badAddress(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		if strings.Count(address, ":") > 1 {
			return "not host:port: an IPv6 address stands in brackets, as in [2001:db8::7]:7946"
		}
		return "not host:port"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "port is not a number from 0 to 65535"
	}
	return ""
}

// loopback reports whether only this machine can reach the address. An empty
// host means every interface.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
