package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// ErrMissing means that this machine cannot run guests, and what it lacks.
var ErrMissing = errors.New("guest: no Lustre equipment")

// SharedVariable names the environment variable for the folder that holds
// lustre/, when it is not the sibling "shared" of the repository.
const SharedVariable = "CASCADE_SHARED"

// Equipment is the folder of the scripts. Its methods are safe for concurrent
// use.
type Equipment struct {
	dir    string // of the scripts
	images string // folder with um/linux and um/initrd.gz
	seed   string // folder of formatted disks
}

// Find looks for the equipment above the working directory and unpacks its
// images where they are not yet. Errors match ErrMissing.
func Find(ctx context.Context) (*Equipment, error) {
	dir, err := folder()
	if err != nil {
		return nil, err
	}
	for _, program := range []string{"bash", "zstd", "tar", "cksum", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: install %s (scripts/tools.sh does)", ErrMissing, program)
		}
	}
	e := &Equipment{dir: dir}
	unpacking.Lock()
	defer unpacking.Unlock()
	if err := e.unpack(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMissing, err)
	}
	if err := e.fit(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return e, nil
}

// folder returns where the scripts are.
func folder() (string, error) {
	shared := os.Getenv(SharedVariable)
	if shared == "" {
		root, err := moduleRoot()
		if err != nil {
			return "", err
		}
		shared = filepath.Join(filepath.Dir(root), "shared")
	}
	dir := filepath.Join(shared, "lustre")
	if _, err := os.Stat(filepath.Join(dir, "lustre-vm.sh")); err != nil {
		return "", fmt.Errorf("%w: %w (%s can name another folder)", ErrMissing, err, SharedVariable)
	}
	return dir, nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, none := os.Stat(filepath.Join(dir, "go.mod")); none == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%w: no go.mod above the working directory", ErrMissing)
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// unpacking keeps two guests of one process from unpacking at the same time.
var unpacking sync.Mutex

// unpack lets lustre-vm.sh unpack its images, which any of its commands does,
// and finds them under the name that it gives them.
func (e *Equipment) unpack(ctx context.Context) error {
	r, err := run(ctx, "unpack the images", nil, e.script(), "status")
	if err != nil {
		return err
	}
	if r.Status != 0 {
		return fmt.Errorf("unpack the images: %s", r.Output)
	}
	sum, err := run(ctx, "name the images", nil, "bash", "-c", `cksum <"$0" | cut -d' ' -f1`, filepath.Join(e.dir, "um.tar.zst"))
	if err != nil {
		return err
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		cache = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	e.images = filepath.Join(cache, "lustre-um-"+strings.TrimSpace(sum.Output))
	e.seed = filepath.Join(e.images, "seed")
	_, err = os.Stat(filepath.Join(e.images, "um", "linux"))
	return err
}

func (e *Equipment) script() string { return filepath.Join(e.dir, "lustre-vm.sh") }

// Host returns the path by which a guest sees a file of this machine. path must
// be absolute.
func Host(path string) string { return "/host" + path }
