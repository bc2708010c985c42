package program

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/buildinfo"
	"cascadekv/internal/config"
	"cascadekv/internal/handover"
)

// Errors of this package.
var (
	ErrUnlisted = errors.New("the program is not one that may replace this one")
	ErrBinary   = errors.New("the program is not suitable")

	errEnding = errors.New("a signal to end was received")
)

// ability is what a program prints that could take another one's place.
type ability struct {
	Handover int               `json:"handover"` // version of the state that it reads
	Version  string            `json:"version"`
	Config   map[string]string `json:"config"`   // what must not differ, as it would have it
	Password string            `json:"password"` // digest of the password that it would have, see passwordDigest
}

// fixedKeys are the parts of the configuration on which clients, or the arena,
// depend.
var fixedKeys = []string{"socket", "listen", "admin.listen", "shm.path", "shm.bytes", "host.bytes", "lustre.dir", "rank", "peers.fabric", "id_bits"}

func fixedOf(c *config.Config) map[string]string {
	values := map[string]string{}
	for _, k := range config.Keys() {
		if slices.Contains(fixedKeys, k.Path) {
			values[k.Path] = k.Text(c)
		}
	}
	return values
}

// WriteAbility prints what this program could take over with a configuration and
// the password of clients.
func WriteAbility(w io.Writer, c *config.Config, password string) error {
	return json.NewEncoder(w).Encode(ability{
		Handover: handover.Version, Version: buildinfo.Version(), Config: fixedOf(c), Password: passwordDigest(rand.Text(), password),
	})
}

// passwordDigest lets one program show another that both have the same password.
func passwordDigest(salt, password string) string {
	sum := sha256.Sum256([]byte(salt + ":" + password))
	return salt + ":" + hex.EncodeToString(sum[:])
}

// Successor returns the program that is asked for, "" for this one anew, by the
// name that it is listed by. Only this one's path and the listed ones are allowed.
// The error matches ErrUnlisted.
func (p Program) Successor(asked string, listed []string) (string, error) {
	asked = filepath.Clean(cmp.Or(asked, p.Path))
	for _, path := range append(listed[:len(listed):len(listed)], p.Path) {
		if path != "" && filepath.Clean(path) == asked {
			return asked, nil
		}
	}
	return "", fmt.Errorf("%w: %s is neither the one it was started from (%s) nor in upgrade_binaries; add its absolute path to that key of the rank's configuration and send SIGHUP", ErrUnlisted, asked, p.Path)
}

// Check returns the version of a program that can take this one's place. It runs it,
// to ask, and then compares its configuration and password with those in force. The
// error matches ErrBinary.
func (p Program) Check(path string, inForce func() (config.Config, string)) (version string, err error) {
	if err := suitable(path); err != nil {
		return "", err
	}
	a, err := ask(path, p.Args)
	if err != nil {
		return "", err
	}
	c, password := inForce()
	return a.Version, a.fits(path, fixedOf(&c), password)
}

// suitable refuses programs that somebody else could have put there.
func suitable(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%w: %q is no absolute path", ErrBinary, path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: %w; name another with --binary", ErrBinary, err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no file", ErrBinary, path)
	case !ok || int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return fmt.Errorf("%w: %s belongs to uid %d, neither to this rank's user nor to root", ErrBinary, path, st.Uid)
	case !private(filepath.Dir(path)):
		return fmt.Errorf("%w: others can replace %s in its directory; chmod o-w that", ErrBinary, path)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("%w: everybody can write to %s; chmod o-w it", ErrBinary, path)
	case unix.Access(path, unix.X_OK) != nil:
		return fmt.Errorf("%w: %s is not executable; chmod +x it", ErrBinary, path)
	}
	return nil
}

// private reports whether only owners of files in a directory, and whoever its
// group has, can replace them.
func private(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && (st.Mode().Perm()&0o002 == 0 || st.Mode()&os.ModeSticky != 0)
}

// askTimeout bounds the question to the other program.
const askTimeout = 20 * time.Second

// ask has a program print its ability.
func ask(path string, args []string) (a ability, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append([]string{checkWord}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return a, fmt.Errorf("%w: %s %s: %w: %s; it must be a cascaded that knows upgrades, and accept this rank's configuration as it is now",
			ErrBinary, path, checkWord, err, firstLine(stderr.String()))
	}
	if err := json.Unmarshal(stdout.Bytes(), &a); err != nil {
		return a, fmt.Errorf("%w: %s says %q: it is no cascaded that knows upgrades", ErrBinary, path, firstLine(stdout.String()))
	}
	return a, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line[:min(len(line), 300)]
}

// fits returns why a program can not take the place of this one, whose fixed
// configuration and password are given.
func (a ability) fits(path string, mine map[string]string, password string) error {
	if a.Handover != handover.Version {
		return fmt.Errorf("%w: %s (%s) reads handovers of version %d, this program writes %d; stop the rank and start that one", ErrBinary, path, a.Version, a.Handover, handover.Version)
	}
	for _, key := range fixedKeys {
		if theirs, there := a.Config[key]; there && theirs != mine[key] {
			return fmt.Errorf("%w: it would start with %s = %s, this rank runs with %s; undo that change of the configuration, or stop the rank and start it", ErrBinary, key, theirs, mine[key])
		}
	}
	// It would let connections go on that authenticated with the old password.
	if salt, _, ok := strings.Cut(a.Password, ":"); ok && passwordDigest(salt, password) != a.Password {
		return fmt.Errorf("%w: password_file holds another password than this rank has: send SIGHUP first, which ends the connections of the old one", ErrBinary)
	}
	return nil
}
