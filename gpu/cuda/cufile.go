package cuda

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"github.com/ebitengine/purego"

	"cascadekv/gpu/failure"
)

// FileLibrary is cuFile's name for the loader.
const FileLibrary = "libcufile.so.0"

// ErrNoCuFile means that libcufile is not there, or can not be loaded.
var ErrNoCuFile = errors.New("no cuFile library")

// FileCode is a result of cuFile (CUfileOpError).
type FileCode int32

// Results that say what a machine lacks. cuFile has more.
const (
	FileNotInitialized       FileCode = 5001
	FilePlatformNotSupported FileCode = 5007
	FileIONotSupported       FileCode = 5008
	FileDeviceNotSupported   FileCode = 5009
	FileModuleError          FileCode = 5010
	FileCUDAError            FileCode = 5011
	FileInvalidType          FileCode = 5018
	FileNotDirect            FileCode = 5020
)

var knownFile = map[FileCode]struct{ name, remedy string }{
	FileNotInitialized:       {"DRIVER_NOT_INITIALIZED", "load the module nvidia-fs, or allow the compatibility mode in cufile.json (allow_compat_mode)"},
	FilePlatformNotSupported: {"PLATFORM_NOT_SUPPORTED", "this machine can not do it"},
	FileIONotSupported:       {"IO_NOT_SUPPORTED", "name a directory on a file system that cuFile serves"},
	FileDeviceNotSupported:   {"DEVICE_NOT_SUPPORTED", "this GPU can not do it"},
	FileModuleError:          {"NVFS_DRIVER_ERROR", "see the kernel's log for nvidia-fs"},
	FileCUDAError:            {"CUDA_DRIVER_ERROR", "see the code of the driver"},
	FileInvalidType:          {"INVALID_FILE_TYPE", "name a directory whose files are regular"},
	FileNotDirect:            {"DIO_NOT_SET", "name a directory on a file system with O_DIRECT"},
}

// Error implements error: cuFile's word for the result.
func (c FileCode) Error() string {
	if k, ok := knownFile[c]; ok {
		return "CU_FILE_" + k.name
	}
	return "CU_FILE error " + strconv.Itoa(int(c))
}

// FileError is a call of cuFile that failed. It wraps its Code, and its Driver.
type FileError struct {
	Call   string
	About  string // what of, "" where the call says it
	Code   FileCode
	Driver Code // of the CUDA driver, 0 where that did not fail
}

// Error implements error.
func (e *FileError) Error() string {
	why := error(e.Code)
	if e.Driver != 0 {
		why = fmt.Errorf("%w, %w", e.Code, e.Driver)
	}
	return failure.Text(e.Call, e.About, why, int32(e.Code), knownFile[e.Code].remedy)
}

// Unwrap returns the codes.
func (e *FileError) Unwrap() []error {
	if e.Driver != 0 {
		return []error{e.Code, e.Driver}
	}
	return []error{e.Code}
}

// The functions of cuFile that are called, as it exports them.
const (
	cuFileDriverOpen       = "cuFileDriverOpen"
	cuFileDriverClose      = "cuFileDriverClose_v2"
	cuFileHandleRegister   = "cuFileHandleRegister"
	cuFileHandleDeregister = "cuFileHandleDeregister"
)

// Files is cuFile as this process has loaded it, opened. It is safe for concurrent use, and the
// library stays loaded for the life of the process.
type Files struct{ at map[string]uintptr }

// OpenFiles loads cuFile and opens its driver, which may take seconds, and for ever where the
// kernel's module hangs: nothing can end it. library is a path, or "" for FileLibrary. Errors: ErrNoCuFile, ErrMissing,
// FileError.
func OpenFiles(library string) (*Files, error) {
	if library == "" {
		library = FileLibrary
	}
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %v: install it with CUDA (libcufile), or have the loader find it (ldconfig, LD_LIBRARY_PATH)", ErrNoCuFile, err)
	}
	f := &Files{at: map[string]uintptr{}}
	for _, name := range []string{cuFileDriverOpen, cuFileDriverClose, cuFileHandleRegister, cuFileHandleDeregister} {
		if f.at[name], err = purego.Dlsym(handle, name); err != nil {
			return nil, &Error{Call: name, About: library, Remedy: "a newer libcufile has it"}
		}
	}
	return f, f.do(cuFileDriverOpen, "")
}

// Close closes the driver.
func (f *Files) Close() error { return f.do(cuFileDriverClose, "") }

// TryFile has cuFile take a file, opened with O_DIRECT, and give it up again. It may take as long as OpenFiles.
// Errors: FileError.
func (f *Files) TryFile(file *os.File) error {
	const opaqueFD = 1
	d := struct { // CUfileDescr_t
		kind      int32
		_         int32
		fd        int32
		_         int32
		functions uintptr
	}{kind: opaqueFD, fd: int32(file.Fd())}
	var handle uintptr
	if err := f.do(cuFileHandleRegister, file.Name(), uintptr(unsafe.Pointer(&handle)), uintptr(unsafe.Pointer(&d))); err != nil {
		return err
	}
	_, _, _ = purego.SyscallN(f.at[cuFileHandleDeregister], handle) // it has no result
	return nil
}

// do calls cuFile, whose result is a struct of two numbers in one register.
//
//go:uintptrescapes
func (f *Files) do(call, about string, args ...uintptr) error {
	result, _, _ := purego.SyscallN(f.at[call], args...)
	if code := FileCode(int32(uint32(result))); code != 0 {
		return &FileError{Call: call, About: about, Code: code, Driver: Code(int32(uint32(uint64(result) >> 32)))}
	}
	return nil
}
