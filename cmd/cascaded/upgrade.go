package main

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
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/buildinfo"
	"cascadekv/internal/config"
	"cascadekv/internal/earlysignal"
	"cascadekv/internal/handover"
	"cascadekv/internal/server"
	"cascadekv/tiers"
)

// An upgrade replaces this program by another one in the same process, which
// goes on with the clients: docs/protocol.md, Upgrade. The other one is asked
// first whether it can, by
//
//	cascaded --check-handover ARGUMENTS
//
// which prints an ability, and then becomes this process as
//
//	cascaded --handover=DESCRIPTOR [--then-end] ARGUMENTS
//
// The words are for programs, and come first.
const (
	checkWord    = "--check-handover"
	handoverWord = "--handover="
	endWord      = "--then-end" // a signal to end has come meanwhile
)

// ability is what a program says that may take another one's place.
type ability struct {
	Handover int               `json:"handover"` // version of the state that it reads
	Version  string            `json:"version"`
	Config   map[string]string `json:"config"`   // what must not differ, as it would have it
	Password string            `json:"password"` // digest of the password that it would have, see passwordDigest
}

// fixedKeys are the parts of the configuration that clients, or the arena, hold
// on to.
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

// checkHandover says what this program could take over, and returns the exit
// status.
func checkHandover(s config.Sources, stdout, stderr io.Writer) int {
	loaded, password, err := load(s)
	if err != nil {
		fmt.Fprintf(stderr, "cascaded: %v\n", err)
		return exitUsage
	}
	err = json.NewEncoder(stdout).Encode(ability{
		Handover: handover.Version, Version: buildinfo.Version(), Config: fixedOf(&loaded.Config), Password: passwordDigest(rand.Text(), password),
	})
	if err != nil {
		return exitFailure
	}
	return exitOK
}

// program is how this program was started, so that another one can be in its
// place.
type program struct {
	path  string // "" when nobody can tell
	args  []string
	state *handover.State // of an earlier program in this process, nil: none
	lost  error           // why that could not be read
	ends  bool            // as soon as it has taken over
}

// started reads the words that are for programs and returns how this one was
// started; the rest of the arguments are in it.
func started(args []string) (p program, check bool) {
	p.path = ownPath(os.Args[0])
	switch {
	case len(args) > 0 && args[0] == checkWord:
		p.args = args[1:]
		return p, true
	case len(args) > 0 && strings.HasPrefix(args[0], handoverWord):
		p.args = args[1:]
		fd, err := strconv.Atoi(strings.TrimPrefix(args[0], handoverWord))
		if err == nil && fd < 3 {
			err = fmt.Errorf("%w: %d is no descriptor of a state", handover.ErrDamaged, fd)
		}
		if err == nil {
			p.state, err = handover.Take(fd)
		}
		p.lost = err
		if len(p.args) > 0 && p.args[0] == endWord {
			p.args, p.ends = p.args[1:], true
		}
		return p, false
	}
	p.args = args
	return p, false
}

// ownPath is where this program lies, as it was called: links in it may lead to
// another version by and by. It is what the system says where the call does not
// tell.
func ownPath(called string) string {
	running, err := os.Executable()
	if err != nil {
		return ""
	}
	found, err := exec.LookPath(called)
	if err != nil {
		return running
	}
	if found, err = filepath.Abs(found); err != nil {
		return running
	}
	a, errA := os.Stat(found)
	b, errB := os.Stat("/proc/self/exe")
	if errA != nil || errB != nil || !os.SameFile(a, b) {
		return running
	}
	return found
}

// Errors of an upgrade.
var (
	errNoUpgrade = errors.New("this rank can not be upgraded in place: restart it")
	errBinary    = errors.New("the program is not suitable")
	errUnlisted  = errors.New("the program is not one that may replace this one")
	errLeft      = errors.New("the program could not be started when the tiers were closed")
	errEnding    = errors.New("this rank was told to end")
)

// checkPatience bounds the question to the other program.
const checkPatience = 20 * time.Second

// upgrade has another program take this one's place. It returns only when that
// does not happen.
func (r *openedRank) upgrade(ctx context.Context, u server.Upgrade) error {
	if r.peers != nil && r.peers.world != nil {
		return fmt.Errorf("%w: its fabric is MPI, which can not be started twice in a process", errNoUpgrade)
	}
	r.limits.Lock()
	listed := r.config.UpgradeTo
	r.limits.Unlock()
	path, err := r.program.successor(u.Binary, listed)
	if err != nil {
		return err
	}
	if err := suitable(path); err != nil {
		return err
	}
	says, err := ask(path, r.program.args)
	if err != nil {
		return err
	}
	r.limits.Lock()
	err = says.fits(path, fixedOf(&r.config), r.secret)
	r.limits.Unlock()
	if err != nil {
		return err
	}
	r.log.Info("upgrading", "binary", path, "version", says.Version)
	return r.server.HandOver(ctx, u.Conn, func(st *handover.State) error { return r.become(path, st) })
}

// successor is the program that is asked for, "" for the one that this one was
// started from, if it is that or a listed one, by the name that it is listed by.
func (p program) successor(asked string, listed []string) (string, error) {
	asked = filepath.Clean(cmp.Or(asked, p.path))
	for _, path := range append(listed[:len(listed):len(listed)], p.path) {
		if path != "" && filepath.Clean(path) == asked {
			return asked, nil
		}
	}
	return "", fmt.Errorf("%w: %s is neither the one it was started from (%s) nor in upgrade_binaries; add its absolute path to that key of the rank's configuration and send SIGHUP", errUnlisted, asked, p.path)
}

// passwordDigest is what one program tells another of its password: whether both
// have the same.
func passwordDigest(salt, password string) string {
	sum := sha256.Sum256([]byte(salt + ":" + password))
	return salt + ":" + hex.EncodeToString(sum[:])
}

// suitable refuses programs that somebody else could have put there.
func suitable(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%w: %q is no absolute path", errBinary, path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: %w; name another with --binary", errBinary, err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no file", errBinary, path)
	case !ok || int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return fmt.Errorf("%w: %s belongs to uid %d, neither to this rank's user nor to root", errBinary, path, st.Uid)
	case !ours(filepath.Dir(path)):
		return fmt.Errorf("%w: others can replace %s in its directory; chmod o-w that", errBinary, path)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("%w: everybody can write to %s; chmod o-w it", errBinary, path)
	case unix.Access(path, unix.X_OK) != nil:
		return fmt.Errorf("%w: %s is not executable; chmod +x it", errBinary, path)
	}
	return nil
}

// ours reports whether files of a directory can be replaced by their owners and
// whoever its group has only.
func ours(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && (st.Mode().Perm()&0o002 == 0 || st.Mode()&os.ModeSticky != 0)
}

// ask has a program say what it can take over.
func ask(path string, args []string) (a ability, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), checkPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append([]string{checkWord}, args...)...)
	var said, complained bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complained
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return a, fmt.Errorf("%w: %s %s: %w: %s; it must be a cascaded that knows upgrades, and accept this rank's configuration as it is now",
			errBinary, path, checkWord, err, firstLine(complained.String()))
	}
	if err := json.Unmarshal(said.Bytes(), &a); err != nil {
		return a, fmt.Errorf("%w: %s says %q: it is no cascaded that knows upgrades", errBinary, path, firstLine(said.String()))
	}
	return a, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line[:min(len(line), 300)]
}

// fits tells why a program can not take the place of this one, whose fixed
// configuration and password are given.
func (a ability) fits(path string, mine map[string]string, password string) error {
	if a.Handover != handover.Version {
		return fmt.Errorf("%w: %s (%s) reads handovers of version %d, this program writes %d; stop the rank and start that one", errBinary, path, a.Version, a.Handover, handover.Version)
	}
	for _, key := range fixedKeys {
		if theirs, knows := a.Config[key]; knows && theirs != mine[key] {
			return fmt.Errorf("%w: it would start with %s = %s, this rank runs with %s; undo that change of the configuration, or stop the rank and start it", errBinary, key, theirs, mine[key])
		}
	}
	// It would let connections go on that came in by the old password.
	if salt, _, ok := strings.Cut(a.Password, ":"); ok && passwordDigest(salt, password) != a.Password {
		return fmt.Errorf("%w: password_file holds another password than this rank has: send SIGHUP first, which ends the connections of the old one", errBinary)
	}
	return nil
}

const (
	// settlePatience bounds, together, what an upgrade does with the cold tier
	// while clients wait.
	settlePatience = 2 * time.Second
	leaveTiers     = 5 * time.Second
)

// become turns this process into another program. Until the cold tier is closed
// everything can be taken back.
func (r *openedRank) become(path string, st *handover.State) error {
	if !r.turn.TryLock() {
		return errEnding
	}
	defer r.turn.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	if err := r.store.Settle(ctx); err != nil {
		return fmt.Errorf("deletions are not yet recorded in lustre: %w; try again", err)
	}
	if r.peers != nil {
		st.Seeds = r.peers.members.Load().Reached()
	}
	st.Arena = handover.Arena{FD: int32(r.arena.keeper.Fd()), Path: r.arena.keeper.Path()}
	fd, err := handover.Write(st)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ctx, cancel = context.WithTimeout(context.Background(), leaveTiers)
	defer cancel()
	ended, err := r.store.Leave(ctx)
	if err != nil {
		r.log.Warn("lustre is not closed in good order: the next program finds what a kill would have left", "err", err)
	}
	if err = replace(path, r.program.args, st, fd); ended {
		err = fmt.Errorf("%w: %w; start the rank again: it finds what is in memory", errLeft, err)
		r.fail(err)
	}
	return err
}

// replace is exec. It returns why that failed, and then everything is as before.
// A signal to end that this program was sent is passed on.
func replace(path string, args []string, st *handover.State, fd int) error {
	// No other program may be started meanwhile: it would inherit descriptors.
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	undo, err := handover.Pass(st, fd)
	if err != nil {
		return err
	}
	defer undo()
	var files unix.Rlimit // exec lowers the limit to what it was before this program raised it
	limited := unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil
	earlysignal.Stop()
	defer earlysignal.Resume()
	words := []string{path, handoverWord + strconv.Itoa(fd)}
	if earlysignal.Ending() {
		words = append(words, endWord)
	}
	err = syscall.Exec(path, append(words, args...), os.Environ())
	if limited {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &files) // it was that already
	}
	return fmt.Errorf("%s: %w", path, os.NewSyscallError("execve", err))
}

// fail ends the rank for an error that it can not go on with.
func (r *openedRank) fail(err error) {
	select {
	case r.failed <- err:
	default:
	}
}

// claims are what the arena must be opened with.
func (p program) claims() []tiers.Claim {
	if p.state == nil {
		return nil
	}
	var claims []tiers.Claim
	for _, c := range p.state.Claims {
		claims = append(claims, tiers.Claim{Offset: c.Offset, Size: c.Size, CRC: c.CRC, Slot: c.Stage})
	}
	return claims
}

// firstEvent is the least number of an event, see cascade.Options.
func (p program) firstEvent() uint64 {
	if p.state == nil {
		return 0
	}
	return p.state.NextEvent + 1
}

// seeds are where the other ranks were.
func (p program) seeds() []string {
	if p.state == nil {
		return nil
	}
	return p.state.Seeds
}

// tell logs what became of a handover.
func (p program) tell(log *slog.Logger) {
	if p.lost != nil {
		log.Error("what the program before this one handed over is of no use: its clients are disconnected", "err", p.lost)
	}
}
