/* STEP() marks every store at which a test kills the writer; in normal builds it is nothing. */
#ifndef TURNWARD_SHM_STEP_H
#define TURNWARD_SHM_STEP_H

#ifdef SHM_STEP_HOOK
extern void (*shm_step_hook)(void);
#define STEP()                           \
	do {                             \
		if (shm_step_hook)       \
			shm_step_hook(); \
	} while (0)
#else
#define STEP() ((void)0)
#endif

#endif
