package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Machine is a guest with servers and client. Run may be called from several
// goroutines; the other methods belong to one.
type Machine struct {
	e      *Equipment
	dir    string
	keeper *keeper
}

// NewMachine makes a machine with new disks and starts it. The caller must End
// it.
func (e *Equipment) NewMachine(ctx context.Context) (*Machine, error) {
	// A short path: the guest binds sockets below it.
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return nil, err
	}
	m := &Machine{e: e, dir: dir}
	m.keeper, err = keep(m.env(), `"`+e.script()+`" kill; "`+e.script()+`" wipe`)
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if err := m.Up(ctx); err != nil {
		m.End()
		return nil, err
	}
	return m, nil
}

func (m *Machine) env() []string {
	return []string{"LV_DIR=" + m.dir, "LV_ART=" + m.e.images, "LV_SEED=" + m.e.seed}
}

func (m *Machine) control(ctx context.Context, command string) error {
	r, err := run(ctx, command, m.env(), m.e.script(), command)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("guest: %s: status %d: %s", command, r.Status, tail(r.Output))
	}
	return err
}

// Up starts the machine after Kill, on the disks as they are. It returns when
// objects can be made on all servers.
func (m *Machine) Up(ctx context.Context) error {
	err := m.up(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if late := m.settle(ctx, settleLimit); late != nil {
		return errors.Join(err, late)
	}
	return nil
}

// settle does once more what a boot ends with, until it succeeds. The boot tries
// only once to make a file with an object on every server; in one of 100 or so the
// servers have not reported to the client yet that they have room. Where they do not within
// limit, whole seconds, the error has what they say of themselves.
func (m *Machine) settle(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	r, err := run(ctx, "wait for the servers", m.env(), m.e.script(), "run", fmt.Sprintf(settling, int(limit.Seconds())))
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("guest: its servers have no room for a file: status %d: %s", r.Status, tail(r.Output))
	}
	return err
}

// settleLimit is how long servers may take to have room: less than upLimit, so that
// they can be asked why they have none.
const settleLimit = upLimit - 20*time.Second

const settling = `
grep -q ' /mnt/lustre lustre ' /proc/mounts || exit 1
file=/mnt/lustre/.up end=$(($(date +%%s) + %d))
rm -f $file
until why=$(lfs setstripe -c -1 $file 2>&1); do
	if [ $(date +%%s) -ge $end ]; then
		echo "$why"; lfs df; lfs df -i; lctl get_param osp.*.prealloc_status osp.*.destroys_in_flight osp.*.sync_changes; dmesg | tail -n 8
		exit 1
	fi
	rm -f $file
	usleep 200000
done
rm -f $file
`

func (m *Machine) up(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	return m.control(ctx, "up")
}

// Kill takes the machine's power. Commands that run in it end with status Died.
func (m *Machine) Kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	return m.control(ctx, "kill")
}

// Run runs a shell command and waits for its end.
func (m *Machine) Run(ctx context.Context, command string) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	return run(ctx, command, m.env(), m.e.script(), "run", command)
}

// End kills the machine and removes all it left. Nothing else may be called
// afterwards.
func (m *Machine) End() error { return m.keeper.release() }
