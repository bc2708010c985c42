package config

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
)

const maxPassword = 512

// Password reads the secret that clients must send with AUTH; "" when no
// password_file is set. The file must be the reader's alone (see exposed). The
// secret appears in no error and must not be logged.
func (c *Config) Password() (string, error) {
	return secret("password_file", c.PasswordFile)
}

// Secret reads what proves to other ranks that this one belongs to the job; ""
// when no secret_file is set. The file must be the reader's alone (see exposed).
// The secret appears in no error and must not be logged.
func (p *Peers) Secret() (string, error) { return secret("peers.secret_file", p.SecretFile) }

// SeedList lists the addresses in Seeds.
func (p *Peers) SeedList() []string {
	return strings.FieldsFunc(p.Seeds, func(r rune) bool { return r == ',' || r == ' ' })
}

// secret reads the first line of the file that key names.
func secret(key, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	bad := func(problem, remedy string) error {
		return &ValueError{Origin: "file", Key: key, Value: quote(file), Problem: problem, Remedy: remedy}
	}
	// A FIFO that nobody writes to must not hold up the start.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("config: %s: %w; create it with mode 0600", key, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("config: %s: %w", key, err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		groups = nil // as if there were none: then fewer files are accepted
	}
	if exposed(info, append(groups, os.Getegid())) {
		return "", bad(fmt.Sprintf("mode %#o lets others read or change it", info.Mode().Perm()),
			"chmod 600 "+file+"; a file of root that only a group of this process may read, as Kubernetes makes with fsGroup, is accepted too")
	}
	line, err := bufio.NewReader(io.LimitReader(f, maxPassword+2)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("config: %s: %w", key, err)
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" || len(line) > maxPassword {
		return "", bad("first line is empty or too long", fmt.Sprintf("put 1 to %d bytes there", maxPassword))
	}
	return line, nil
}

// exposed reports whether others than its owner and root can read or change a
// file. Reading by a group that this process is in does not count where root
// made it so: it is how Kubernetes hands a secret to a container that does not
// run as root. On a file of the user's own it does count: the group may be that
// of everybody on a cluster.
func exposed(info fs.FileInfo, groups []int) bool {
	open := info.Mode().Perm() & 0o077
	if open == 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return !ok || open != 0o040 || st.Uid != 0 || !slices.Contains(groups, int(st.Gid))
}
