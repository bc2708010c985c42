package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/testing/testneed"
	"cascadekv/internal/units"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKeysAreUniqueInEverySpelling(t *testing.T) {
	seen := map[string]string{FileEnv: "the file", "config": "the file"}
	for _, k := range Keys() {
		if k.Help == "" {
			t.Errorf("%s has no help", k.Path)
		}
		for _, name := range []string{k.Path + " (key)", k.Env(), k.Flag()} {
			if other, taken := seen[name]; taken {
				t.Errorf("%s and %s are both spelt %s", other, k.Path, name)
			}
			seen[name] = k.Path
		}
	}
	for _, flag := range []string{"socket", "listen", "shm-bytes", "lustre-dir", "rank", "policy"} {
		if _, ok := seen[flag]; !ok {
			t.Errorf("no flag --%s", flag)
		}
	}
}

func TestPrecedenceAndOrigins(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "cascade.toml", "max_connections = 1\nlease = 1\nrank = 1\n[shm]\nbytes = \"1GiB\"\n[log]\nlevel = \"warn\"\n")
	write(t, dir, "conf.d/10-a.toml", "max_connections = 2\nrank = 2\nlease = 2\nshm.bytes = 5000000\n")
	write(t, dir, "conf.d/20-b.toml", "rank = 3\nlease = 3\nallow_uids = [1, 2]\n")
	file := write(t, dir, "own.toml", "\n\nrank = 4\nlease = 4\nmax_connections = 50\nhost = {bytes = 4096}\n")
	l, err := Load(Sources{
		SystemDir: dir,
		Env:       []string{"CASCADE_CONFIG=" + file, "CASCADE_RANK=5", "CASCADE_LEASE=90", "HOME=/", "CASCADE_ALLOW_UIDS=7,8,9"},
		Flags:     map[string]string{"rank": "6"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]string{
		"rank":            {"6", "flag --rank"},
		"lease":           {`"1m30s"`, "environment CASCADE_LEASE"},
		"allow_uids":      {"[7, 8, 9]", "environment CASCADE_ALLOW_UIDS"},
		"max_connections": {"50", file + ":5"},
		"host.bytes":      {`"4KiB"`, file + ":6"},
		"shm.bytes":       {`"5000000B"`, dir + "/conf.d/10-a.toml:4"},
		"log.level":       {`"warn"`, dir + "/cascade.toml:7"},
		"clean_above":     {"0.75", Built},
	} {
		k, _ := Lookup(path)
		if got := [2]string{k.TOML(&l.Config), l.Origin(path)}; got != want {
			t.Errorf("%s = %v, want %v", path, got, want)
		}
	}
	if len(l.Files) != 4 {
		t.Errorf("read %v, want four files", l.Files)
	}
}

// TestListOfPrograms: a list of texts is the same from each source, and as Key
// writes it.
func TestListOfPrograms(t *testing.T) {
	file := write(t, t.TempDir(), "c.toml", "upgrade_binaries = [\"/opt/a b\", \"/opt/c\"]\n")
	k, _ := Lookup("upgrade_binaries")
	for name, s := range map[string]Sources{
		"file": {File: file}, "variable": {Env: []string{"CASCADE_UPGRADE_BINARIES=/opt/a b, /opt/c"}}, "flag": {Flags: map[string]string{"upgrade_binaries": "/opt/a b,/opt/c"}},
	} {
		l, err := Load(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := k.TOML(&l.Config); got != `["/opt/a b", "/opt/c"]` || len(l.UpgradeTo) != 2 || k.Text(&l.Config) != "/opt/a b,/opt/c" || k.Type() != "list" || !k.Reload {
			t.Errorf("%s: %s, %q", name, got, l.UpgradeTo)
		}
	}
}

func TestAFileCanLowerAndEmptyValues(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "cascade.toml", "allow_uids = [5]\nverify_reads = true\nlisten = \"127.0.0.1:1\"\n")
	file := write(t, dir, "own.toml", "allow_uids = []\nverify_reads = false\nlisten = \"\"\nlease = 0\n")
	l, err := Load(Sources{SystemDir: dir, File: file})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.AllowUIDs) != 0 || l.VerifyReads || l.Listen != "" || l.Lease != 0 {
		t.Errorf("got %+v", l.Config)
	}
}

func TestPlaceholders(t *testing.T) {
	one, err := Load(Sources{Env: []string{"CASCADE_RANK=12", "CASCADE_JOB=j7", "CASCADE_LUSTRE_DIR=/scratch/{job}/{rank}"}})
	if err != nil {
		t.Fatal(err)
	}
	two, err := Load(Sources{Env: []string{"CASCADE_RANK=12", "CASCADE_SOCKET=/tmp/other.sock"}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(one.Socket, "/rank12.sock") || one.Lustre.Dir != "/scratch/j7/12" || strings.Contains(one.Shm.Path, "{") {
		t.Errorf("placeholders stay in %q, %q, %q", one.Socket, one.Lustre.Dir, one.Shm.Path)
	}
	if one.Shm.Path == two.Shm.Path {
		t.Errorf("two sockets share the arena %s", one.Shm.Path)
	}
}

func TestErrorsNamePlaceAndRemedy(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		file  string
		env   []string
		flags map[string]string
		is    error
		want  []string // parts of the message, in order
	}{
		"unknown key":         {file: "rank = 1\n[shm]\nbyte = 5\n", is: ErrUnknownKey, want: []string{"FILE:3", `"shm.byte"`, `"shm.bytes"`, "cascade config show"}},
		"unknown top key":     {file: "\nsockt = \"/tmp/x\"\n", is: ErrUnknownKey, want: []string{"FILE:2", `"sockt"`, `"socket"`}},
		"dotted key":          {file: "lustre.idr = \"/x\"\n", is: ErrUnknownKey, want: []string{"FILE:1", `"lustre.idr"`, `"lustre.dir"`}},
		"inline table":        {file: "lustre = {dri = \"/x\"}\n", is: ErrUnknownKey, want: []string{"FILE:1", `"lustre.dri"`, `"lustre.dir"`}},
		"unknown table":       {file: "\n\n[shn]\nbytes = 1\n", is: ErrUnknownKey, want: []string{"FILE:3", `"shn"`, `"shm"`}},
		"two of them":         {file: "rnk = 1\npolcy = \"lru\"\n", is: ErrUnknownKey, want: []string{"FILE:1", `"rank"`, "FILE:2", `"policy"`}},
		"unknown dotted key":  {file: "lustre.stripecount = 4\n", is: ErrUnknownKey, want: []string{"FILE:1", `"lustre.stripecount"`, `"lustre.stripe_count"`}},
		"list of tables":      {file: "[[shm]]\nbytes = 1\n", is: ErrValue, want: []string{"FILE:1", "[shm]"}},
		"wrong kind":          {file: "rank = \"one\"\n", is: ErrValue, want: []string{"FILE:1", "rank", `"one"`, "an integer"}},
		"bool as text":        {file: "verify_reads = \"yes\"\n", is: ErrValue, want: []string{"FILE:1", "true or false"}},
		"table as value":      {file: "rank = {a = 1}\n", is: ErrValue, want: []string{"FILE:1", "rank"}},
		"value as table":      {file: "shm = 1\n", is: ErrUnknownKey, want: []string{"FILE:1", `"shm"`}},
		"bad size":            {file: "\nshm.bytes = \"4XB\"\n", is: ErrValue, want: []string{"FILE:2", "shm.bytes", `"XB"`, "4GiB"}},
		"negative size":       {file: "shm.bytes = -4\n", is: ErrValue, want: []string{"FILE:1", "shm.bytes", "negative"}},
		"list of text":        {file: "allow_uids = [\"me\"]\n", is: ErrValue, want: []string{"FILE:1", "allow_uids"}},
		"program list":        {file: "upgrade_binaries = [1]\n", is: ErrValue, want: []string{"FILE:1", "upgrade_binaries", "a string"}},
		"no list of programs": {file: "upgrade_binaries = \"/opt/cascaded\"\n", is: ErrValue, want: []string{"FILE:1", "upgrade_binaries", "list of strings"}},
		"comma in a program":  {file: "upgrade_binaries = [\"/opt/a,b\"]\n", is: ErrValue, want: []string{"FILE:1", "upgrade_binaries", "comma"}},
		"relative program":    {file: "upgrade_binaries = [\"/opt/a\", \"bin/b\"]\n", is: ErrValue, want: []string{"FILE:1", `upgrade_binaries = ["/opt/a", "bin/b"]`, "absolute"}},
		"long admin socket":   {file: "admin.listen = \"/" + strings.Repeat("s", 107) + "\"\n", is: ErrValue, want: []string{"FILE:1", "admin.listen", "107"}},
		"admin on the socket": {file: "socket = \"/tmp/x\"\nadmin.listen = \"/tmp/x\"\n", is: ErrValue, want: []string{"FILE:2", "admin.listen", "socket of clients"}},
		"broken syntax":       {file: "rank = 1\nsocket = \n", is: ErrSyntax, want: []string{"FILE:2:"}},
		"doubled key":         {file: "rank = 1\nrank = 2\n", is: ErrSyntax, want: []string{"FILE:2", "rank"}},
		"value out of range":  {file: "\n\nid_bits = 129\n", is: ErrValue, want: []string{"FILE:3", "id_bits = 129", "128 or 256"}},
		"unknown policy":      {file: "policy = \"lur\"\n", is: ErrValue, want: []string{"FILE:1", "policy", `did you mean "lru"`}},
		"open to the network": {file: "listen = \"0.0.0.0:6379\"\n", is: ErrValue, want: []string{"FILE:1", "without a password", "password_file"}},
		"every interface":     {file: "listen = \":6379\"\n", is: ErrValue, want: []string{"without a password"}},
		"open profiles":       {file: "password_file = \"/x\"\nadmin.listen = \"10.0.0.1:80\"\n", is: ErrValue, want: []string{"FILE:2", "admin.listen"}},
		"no port":             {file: "listen = \"localhost\"\n", is: ErrValue, want: []string{"FILE:1", "host:port"}},
		"bare IPv6":           {file: "peers.fabric = \"tcp\"\npeers.gossip = \"2001:db8::7:7946\"\n", is: ErrValue, want: []string{"FILE:2", "peers.gossip", "brackets"}},
		"no interface":        {file: "peers.fabric = \"tcp\"\npeers.interface = \"ib0,,\"\n", is: ErrValue, want: []string{"FILE:2", "peers.interface", "no interface and no network"}},
		"half a network":      {file: "peers.fabric = \"tcp\"\npeers.interface = \"10.0.0.0/33\"\n", is: ErrValue, want: []string{"FILE:2", "peers.interface", "10.1.0.0/16"}},
		"ports backwards":     {file: "peers.ports = \"20100-20000\"\n", is: ErrValue, want: []string{"FILE:1", "peers.ports", "20000-20100"}},
		"one port for two":    {file: "peers.fabric = \"tcp\"\npeers.ports = 7946\n", is: ErrValue, want: []string{"FILE:2", "peers.ports", "two"}},
		"long socket":         {file: "socket = \"/" + strings.Repeat("s", 107) + "\"\n", is: ErrValue, want: []string{"FILE:1", "108 bytes", "107"}},
		"nobody can connect":  {file: "socket = \"\"\n", is: ErrValue, want: []string{"FILE:1", "set socket or listen"}},
		"not a share":         {file: "clean_above = nan\n", is: ErrValue, want: []string{"FILE:1", "clean_above"}},
		"odd segment":         {file: "lustre.segment_bytes = 1048577\n", is: ErrValue, want: []string{"FILE:1", "64KiB"}},
		"few blocks":          {file: "lustre.segment_blocks = 15\n", is: ErrValue, want: []string{"FILE:1", "16 to 16777216"}},
		"few files":           {file: "lustre.max_files = 1\n", is: ErrValue, want: []string{"FILE:1", "16 to 16777216"}},
		"tiny shm":            {file: "shm.bytes = \"4k\"\n", is: ErrValue, want: []string{"FILE:1", "4MiB"}},
		"job leaves its path": {file: "job = \"../x\"\n", is: ErrValue, want: []string{"FILE:1", "job"}},
		"bad variable":        {env: []string{"CASCADE_RANK=first"}, is: ErrValue, want: []string{"environment CASCADE_RANK", `"first"`, "whole number"}},
		"bad flag":            {flags: map[string]string{"shm.bytes": "much"}, is: ErrValue, want: []string{"flag --shm-bytes", `"much"`, "4GiB"}},
		"range of a flag":     {flags: map[string]string{"rank": "-1"}, is: ErrValue, want: []string{"flag --rank", "0 to 99999"}},
		"missing file":        {env: []string{"CASCADE_CONFIG=/nowhere/c.toml"}, is: os.ErrNotExist, want: []string{"/nowhere/c.toml", "--config"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := Sources{Env: tc.env, Flags: tc.flags}
			if tc.file != "" {
				s.File = write(t, dir, "c.toml", tc.file)
			}
			_, err := Load(s)
			if !errors.Is(err, tc.is) {
				t.Fatalf("Load: %v; want one that matches %v", err, tc.is)
			}
			rest := strings.ReplaceAll(err.Error(), s.File+":", "FILE:")
			for _, part := range tc.want {
				_, after, found := strings.Cut(rest, part)
				if !found {
					t.Fatalf("%q is not in its place in: %v", part, err)
				}
				rest = after
			}
		})
	}
}

func TestReload(t *testing.T) {
	old := Default()
	for name, tc := range map[string]struct {
		edit    func(*Config)
		changed []string
		refused []string
	}{
		"nothing":  {edit: func(*Config) {}},
		"level":    {edit: func(c *Config) { c.Log.Level = "debug" }, changed: []string{"log.level"}},
		"several":  {edit: func(c *Config) { c.Lease = 0; c.MaxConnections = 1 }, changed: []string{"max_connections", "lease"}},
		"empty is": {edit: func(c *Config) { c.AllowUIDs = []int{} }},
		"immutable": {edit: func(c *Config) { c.Shm.Bytes = units.TiB },
			refused: []string{"shm.bytes", `"1GiB"`, `"1TiB"`, "restart"}},
		"mixed": {edit: func(c *Config) { c.Log.Level = "debug"; c.Rank = 3; c.Socket = "/x" },
			refused: []string{"rank", "socket"}},
	} {
		t.Run(name, func(t *testing.T) {
			edited := Default()
			tc.edit(&edited)
			merged, changed, err := Reload(old, edited)
			if !slices.Equal(changed, tc.changed) {
				t.Errorf("changed %v, want %v", changed, tc.changed)
			}
			want := edited
			if len(tc.refused) > 0 {
				want = old
				for _, part := range tc.refused {
					if !errors.Is(err, ErrImmutable) || !strings.Contains(err.Error(), part) {
						t.Errorf("%v should match ErrImmutable and contain %q", err, part)
					}
				}
			} else if err != nil {
				t.Error(err)
			}
			if merged.Rank != want.Rank || merged.Lease != want.Lease || merged.Log != want.Log || merged.Shm != want.Shm {
				t.Errorf("merged is %+v, want %+v", merged, want)
			}
		})
	}
}

func TestPassword(t *testing.T) {
	dir := t.TempDir()
	open := write(t, dir, "open", "secret\n")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		file, want, err string
	}{
		"none":      {},
		"own":       {file: write(t, dir, "own", "s3cr3t \nmore\n"), want: "s3cr3t "},
		"windows":   {file: write(t, dir, "crlf", "abc\r\n"), want: "abc"},
		"no end":    {file: write(t, dir, "noend", "abc"), want: "abc"},
		"empty":     {file: write(t, dir, "empty", "\nabc"), err: "empty"},
		"long":      {file: write(t, dir, "long", strings.Repeat("x", 600)), err: "too long"},
		"others":    {file: open, err: "chmod 600"},
		"not there": {file: filepath.Join(dir, "no"), err: "0600"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{PasswordFile: tc.file}
			got, err := c.Password()
			if got != tc.want || (err == nil) != (tc.err == "") {
				t.Fatalf("Password() = %q, %v", got, err)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "secret")) {
				t.Errorf("%v should say %q and never the secret", err, tc.err)
			}
		})
	}
}

// TestGroupReadableSecret: what Kubernetes mounts with fsGroup is accepted, and
// nothing that anybody else could read or change.
func TestGroupReadableSecret(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "the right to give files away", "run this test as root")
	const theirs, nobody = 54321, 65534
	for name, c := range map[string]struct {
		mode     os.FileMode
		uid, gid int
		ok       bool
	}{
		"as Kubernetes":     {0o440, 0, os.Getegid(), true},
		"with fsGroup, rw":  {0o640, 0, os.Getegid(), true},
		"another group":     {0o440, 0, theirs, false},
		"group may write":   {0o460, 0, os.Getegid(), false},
		"everybody reads":   {0o444, 0, os.Getegid(), false},
		"everybody alone":   {0o404, 0, os.Getegid(), false},
		"of a user":         {0o440, nobody, os.Getegid(), false},
		"of a user, closed": {0o400, nobody, theirs, true},
	} {
		file := write(t, t.TempDir(), "pw", "s3cr3t\n")
		if err := errors.Join(os.Chown(file, c.uid, c.gid), os.Chmod(file, c.mode)); err != nil {
			t.Fatal(err)
		}
		password := Config{PasswordFile: file}
		peers := Peers{SecretFile: file}
		got, err := password.Password()
		secret, err2 := peers.Secret()
		if (err == nil) != c.ok || (err2 == nil) != c.ok || c.ok && (got != "s3cr3t" || secret != got) {
			t.Errorf("%s: %q, %v; %q, %v; want accepted: %v", name, got, err, secret, err2, c.ok)
		}
	}
}

// TestSecretThatNobodyWrites: a FIFO is an error, not a wait.
func TestSecretThatNobodyWrites(t *testing.T) {
	c := Config{PasswordFile: filepath.Join(t.TempDir(), "fifo")}
	if err := syscall.Mkfifo(c.PasswordFile, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Password(); !errors.Is(err, ErrValue) {
		t.Errorf("%v, want one that matches ErrValue", err)
	}
}

func TestNearest(t *testing.T) {
	for name, want := range map[string]string{
		"shm.byets": "shm.bytes", "SOCKET": "socket", "lustre-dir": "lustre.dir", "loglevel": "log.level",
	} {
		if got := nearest(name, paths()); got != want {
			t.Errorf("nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

// FuzzConfig holds that no document crashes the reader, that every complaint
// names the file, and that what is accepted survives being written and read.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		"", "rank = 1", "[shm]\nbytes = \"4GiB\"", "shm = {bytes = 1, path = '/x'}", "[[shm]]", "a.b.c = 1", "lease = 1e3",
		"allow_uids = [1, 2,\n# c\n3]", "job = \"\\u0000\"", "rank = 0x10", "[shm", "x = 1979-05-27", "[a.b]\n[a]\nb = 1", "log.level = '''x'''",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		l := &Loaded{Config: Default(), origins: map[string]string{}}
		if err := l.apply("F", document); err != nil {
			if !strings.HasPrefix(err.Error(), "F:") {
				t.Fatalf("%v does not name the file", err)
			}
			return
		}
		var text strings.Builder
		for _, k := range Keys() {
			text.WriteString(k.Path + " = " + k.TOML(&l.Config) + "\n")
		}
		again := &Loaded{origins: map[string]string{}}
		if err := again.apply("again", []byte(text.String())); err != nil {
			t.Fatalf("%v in\n%s", err, text.String())
		}
		for _, k := range Keys() {
			if a, b := k.TOML(&l.Config), k.TOML(&again.Config); a != b {
				t.Fatalf("%s = %s reads back as %s", k.Path, a, b)
			}
		}
		_ = l.Validate()
	})
}

func TestStripingKeys(t *testing.T) {
	for name, tc := range map[string]struct {
		lines string
		want  []string // parts of the error, in order; none: no error
	}{
		"as lfs writes sizes": {"stripe_count = 16\nstripe_size = \"4m\"\npool = \"flash\"", nil},
		"all OSTs":            {"stripe_count = -1", nil},
		"a line":              {`setstripe = "-E 64M -c 1 -E -1 -c 16 -S 4m"`, nil},
		"count":               {"stripe_count = 2001", []string{"FILE:2", "lustre.stripe_count", "2000"}},
		"count below":         {"stripe_count = -2", []string{"FILE:2", "lustre.stripe_count"}},
		"size":                {`stripe_size = "100000"`, []string{"FILE:2", "lustre.stripe_size", "64KiB", "4m"}},
		"size too large":      {`stripe_size = "4g"`, []string{"FILE:2", "lustre.stripe_size", "below 4GiB"}},
		"pool":                {`pool = "a pool"`, []string{"FILE:2", "lustre.pool", "lfs pool_list"}},
		"pool too long":       {`pool = "abcdefghijklmnop"`, []string{"FILE:2", "lustre.pool", "15"}},
		"both":                {"pool = \"flash\"\nsetstripe = \"-c 4\"", []string{"FILE:3", "lustre.setstripe", "stripe_count"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, t.TempDir(), "c.toml", "[lustre]\n"+tc.lines+"\n")
			l, err := Load(Sources{File: file})
			if tc.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				if refused := l.Refuse("lustre.pool", "gone", "use another"); !errors.Is(refused, ErrValue) || !strings.Contains(refused.Error(), "lustre.pool = ") {
					t.Errorf("refused: %v", refused)
				}
				return
			}
			if !errors.Is(err, ErrValue) {
				t.Fatalf("got %v", err)
			}
			rest := strings.ReplaceAll(err.Error(), file, "FILE")
			for _, part := range tc.want {
				at := strings.Index(rest, part)
				if at < 0 {
					t.Fatalf("%v does not say %q in its place", err, part)
				}
				rest = rest[at:]
			}
		})
	}
	file := write(t, t.TempDir(), "c.toml", "[lustre]\n\nsetstripe = \"-c x\"\n")
	l, err := Load(Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Refuse("lustre.setstripe", "bad", "mend it").Error(), file+":3: lustre.setstripe = \"-c x\": bad; mend it"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
