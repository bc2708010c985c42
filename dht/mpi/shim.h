/* What cgo can not say in Go: macros, structs by value, and loops that must not cross into Go. */
#ifndef CASCADE_MPI_SHIM_H
#define CASCADE_MPI_SHIM_H
#include <mpi.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct {
  int index, source, tag, error, cancelled;
  long long bytes;
} cascade_done;

static inline MPI_Comm cascade_world(void) { return MPI_COMM_WORLD; }
static inline MPI_Request cascade_request_null(void) { return MPI_REQUEST_NULL; }
static inline int cascade_errors_return(MPI_Comm c) { return MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN); }
static inline int cascade_win_errors_return(MPI_Win w) { return MPI_Win_set_errhandler(w, MPI_ERRORS_RETURN); }

static inline void cascade_status(const MPI_Status *s, cascade_done *d) {
  MPI_Count n = 0;
  int cancelled = 0;
  MPI_Test_cancelled(s, &cancelled);
  if (MPI_Get_elements_x(s, MPI_BYTE, &n) != MPI_SUCCESS || n < 0) n = 0;
  d->source = s->MPI_SOURCE;
  d->tag = s->MPI_TAG;
  d->cancelled = cancelled;
  d->bytes = (long long)n;
}

/* A count is an int: one element of a type of n bytes, full GiB and the rest, says more. */
static int cascade_big_type(size_t n, MPI_Datatype *t) {
  const size_t unit = (size_t)1 << 30;
  int lengths[2] = {(int)(n / unit), (int)(n % unit)};
  MPI_Aint at[2] = {0, (MPI_Aint)(n / unit * unit)};
  MPI_Datatype gib, whole;
  int rc = MPI_Type_contiguous((int)unit, MPI_BYTE, &gib);
  if (rc) return rc;
  MPI_Datatype types[2] = {gib, MPI_BYTE};
  rc = MPI_Type_create_struct(2, lengths, at, types, &whole);
  MPI_Type_free(&gib);
  if (rc) return rc;
  rc = MPI_Type_commit(&whole);
  if (rc) MPI_Type_free(&whole);
  else *t = whole;
  return rc;
}

#define CASCADE_SMALL ((size_t)1 << 30)

static int cascade_isend(const void *p, size_t n, int to, int tag, MPI_Comm c, MPI_Request *r) {
  if (n <= CASCADE_SMALL) return MPI_Isend(p, (int)n, MPI_BYTE, to, tag, c, r);
  MPI_Datatype t;
  int rc = cascade_big_type(n, &t);
  if (rc) return rc;
  rc = MPI_Isend(p, 1, t, to, tag, c, r);
  MPI_Type_free(&t);
  return rc;
}

static int cascade_irecv(void *p, size_t n, int from, int tag, MPI_Comm c, MPI_Request *r) {
  if (n <= CASCADE_SMALL) return MPI_Irecv(p, (int)n, MPI_BYTE, from, tag, c, r);
  MPI_Datatype t;
  int rc = cascade_big_type(n, &t);
  if (rc) return rc;
  rc = MPI_Irecv(p, 1, t, from, tag, c, r);
  MPI_Type_free(&t);
  return rc;
}

static int cascade_rget(void *p, size_t n, int from, size_t at, MPI_Win w, MPI_Request *r) {
  if (n <= CASCADE_SMALL) return MPI_Rget(p, (int)n, MPI_BYTE, from, (MPI_Aint)at, (int)n, MPI_BYTE, w, r);
  MPI_Datatype t;
  int rc = cascade_big_type(n, &t);
  if (rc) return rc;
  rc = MPI_Rget(p, 1, t, from, (MPI_Aint)at, 1, t, w, r);
  MPI_Type_free(&t);
  return rc;
}

static inline int cascade_imin(void *v, MPI_Comm c, MPI_Request *r) {
  return MPI_Iallreduce(MPI_IN_PLACE, v, 1, MPI_INT, MPI_MIN, c, r);
}

static inline int cascade_gather(const void *mine, void *all, int n, MPI_Comm c) {
  return MPI_Allgather(mine, n, MPI_INT64_T, all, n, MPI_INT64_T, c);
}

/* Tests all n requests until one is done, at most spins times. Waiting in C costs no crossings. */
static int cascade_testsome(MPI_Request *r, int n, int spins, int yield, int *index, MPI_Status *s, cascade_done *done, int *count) {
  int rc = MPI_SUCCESS;
  *count = 0;
  for (int i = 0; i < spins; i++) {
    int k = 0;
    rc = MPI_Testsome(n, r, &k, index, s);
    if (k == MPI_UNDEFINED) return MPI_SUCCESS;
    if (rc != MPI_SUCCESS && rc != MPI_ERR_IN_STATUS) return rc;
    if (k > 0) {
      for (int j = 0; j < k; j++) {
        done[j].index = index[j];
        done[j].error = rc == MPI_ERR_IN_STATUS ? s[j].MPI_ERROR : MPI_SUCCESS;
        cascade_status(&s[j], &done[j]);
      }
      *count = k;
      return MPI_SUCCESS;
    }
    if (yield) sched_yield();
  }
  return rc;
}

static int cascade_improbe(int from, int tag, MPI_Comm c, int *found, MPI_Message *m, cascade_done *d) {
  MPI_Status s;
  int rc = MPI_Improbe(from, tag, c, found, m, &s);
  if (rc == MPI_SUCCESS && *found) cascade_status(&s, d);
  return rc;
}
#endif
