/* A rod that conducts heat, divided over the ranks of a communicator.
 *
 *     du/dt = d²u/dx²   on 0 < x < 1,   u(0) is controlled, u(1) is given
 *
 * Explicit steps on `cells` cells; each rank holds a stretch of them and a halo cell on either side, which it
 * gets from its neighbours before every step. heat.py builds this file with mpicc and calls it.
 */
#include <mpi.h>
#include <stdlib.h>

typedef struct {
    MPI_Comm comm;
    int rank, size, cells, first, count; /* this rank's cells are first … first + count - 1 */
    double *now, *next;                  /* [count + 2] with the halo */
} Rod;

Rod *rod_new(MPI_Fint comm, int cells) {
    Rod *rod = malloc(sizeof(Rod));
    rod->comm = MPI_Comm_f2c(comm);
    MPI_Comm_rank(rod->comm, &rod->rank);
    MPI_Comm_size(rod->comm, &rod->size);
    rod->cells = cells;
    rod->first = (int)((long)cells * rod->rank / rod->size);
    rod->count = (int)((long)cells * (rod->rank + 1) / rod->size) - rod->first;
    rod->now = calloc(rod->count + 2, sizeof(double));
    rod->next = calloc(rod->count + 2, sizeof(double));
    return rod;
}

void rod_fill(Rod *rod, double temperature) {
    for (int i = 0; i < rod->count + 2; i++) rod->now[i] = temperature;
}

/* Steps with fixed ends, then the temperatures of `sensors` evenly spaced cells, known to all ranks. */
void rod_step(Rod *rod, double left, double right, int steps, double ratio, int sensors, double *seen) {
    int before = rod->rank > 0 ? rod->rank - 1 : MPI_PROC_NULL;
    int after = rod->rank < rod->size - 1 ? rod->rank + 1 : MPI_PROC_NULL;
    int last = rod->count;
    for (int step = 0; step < steps; step++) {
        double *u = rod->now;
        MPI_Sendrecv(&u[1], 1, MPI_DOUBLE, before, 0, &u[last + 1], 1, MPI_DOUBLE, after, 0, rod->comm,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(&u[last], 1, MPI_DOUBLE, after, 1, &u[0], 1, MPI_DOUBLE, before, 1, rod->comm,
                     MPI_STATUS_IGNORE);
        if (before == MPI_PROC_NULL) u[0] = left;
        if (after == MPI_PROC_NULL) u[last + 1] = right;
        for (int i = 1; i <= last; i++) rod->next[i] = u[i] + ratio * (u[i - 1] - 2 * u[i] + u[i + 1]);
        rod->now = rod->next;
        rod->next = u;
    }
    for (int s = 0; s < sensors; s++) {
        int cell = (int)((s + 0.5) * rod->cells / sensors), mine = cell - rod->first;
        seen[s] = mine >= 0 && mine < rod->count ? rod->now[mine + 1] : 0.0;
    }
    MPI_Allreduce(MPI_IN_PLACE, seen, sensors, MPI_DOUBLE, MPI_SUM, rod->comm);
}

void rod_free(Rod *rod) {
    free(rod->now);
    free(rod->next);
    free(rod);
}
