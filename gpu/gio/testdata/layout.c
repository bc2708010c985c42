// layout.c prints the offsets of gio.h; with the name of a file, a region, it has gio_prepare fill the entries of slot 0 in it.
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../gio.h"

#define SIZE(s) printf(#s " %zu\n", sizeof(struct s));
#define AT(s, f) printf(#s "." #f " %zu\n", offsetof(struct s, f));

int main(int argc, char **argv) {
    if (argc > 1) {
        struct stat st;
        int fd = open(argv[1], O_RDWR);
        if (fd < 0 || fstat(fd, &st)) return 1;
        struct gio_header *h = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (h == MAP_FAILED) return 1;
        gio_prepare(h, 0);
        return 0;
    }
    SIZE(gio_header) AT(gio_header, magic) AT(gio_header, version) AT(gio_header, depth) AT(gio_header, num_ioctx) AT(gio_header, slot_bytes)
    AT(gio_header, sqes_offset) AT(gio_header, iocb_offset) AT(gio_header, buffers) AT(gio_header, files) AT(gio_header, bytes)
    AT(gio_header, sq_tail) AT(gio_header, cq_tail) AT(gio_header, engine) AT(gio_header, stop) AT(gio_header, device)
    AT(gio_header, buffer) AT(gio_header, sq) AT(gio_header, cq) AT(gio_header, event)
    SIZE(gio_rings) AT(gio_rings, sq_head) AT(gio_rings, sq_tail) AT(gio_rings, cq_head) AT(gio_rings, cq_tail) AT(gio_rings, sq_mask)
    AT(gio_rings, cq_mask) AT(gio_rings, sq_entries) AT(gio_rings, cq_entries) AT(gio_rings, sq_flags)
    SIZE(gio_cqe) AT(gio_cqe, user_data) AT(gio_cqe, res)
    SIZE(gio_sqe) AT(gio_sqe, opcode) AT(gio_sqe, flags) AT(gio_sqe, file) AT(gio_sqe, offset) AT(gio_sqe, addr) AT(gio_sqe, len)
    AT(gio_sqe, user_data) AT(gio_sqe, buffer)
    SIZE(gio_ioctx) AT(gio_ioctx, address) AT(gio_ioctx, length) AT(gio_ioctx, id) AT(gio_ioctx, offset) AT(gio_ioctx, bytes) AT(gio_ioctx, file)
    SIZE(gio_iocb) AT(gio_iocb, index) AT(gio_iocb, num_ioctx) AT(gio_iocb, op) AT(gio_iocb, window) AT(gio_iocb, event_word)
    AT(gio_iocb, event_value) AT(gio_iocb, base) AT(gio_iocb, ended) AT(gio_iocb, failed) AT(gio_iocb, first_result)
    AT(gio_iocb, first_failed) AT(gio_iocb, failures)
    return 0;
}
